"""What `Balancer.partition` returns: units by worker name, and the report of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fpmdask.runtime.report import Report


class Shares(Mapping[str, int]):
    """Units by worker name.

    A mapping, so that ``dict(shares)`` and ``shares["alpha"]`` work; `numpy.asarray` gives the
    units in worker order. Immutable.

    Attributes
    ----------
    workers : tuple of str
        Names, in worker order.
    units : numpy.ndarray
        Units of each, int64, summing to all; read-only.
    report : Report
        The run: rounds, models, and why it ended.
    """

    __slots__ = ("report", "units", "workers")

    def __init__(self, report: Report) -> None:
        units = np.array(report.distribution, dtype=np.int64)
        units.flags.writeable = False
        self.report, self.workers, self.units = report, report.workers, units

    def __getitem__(self, worker: str) -> int:
        try:
            return int(self.units[self.workers.index(worker)])
        except ValueError:
            raise KeyError(worker) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.workers)

    def __len__(self) -> int:
        return len(self.workers)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            return self.units if dtype in (None, np.int64) else self.units.astype(dtype, copy=False)
        return np.array(self.units, dtype=dtype)

    def __repr__(self) -> str:
        return f"<Shares {dict(self)}>"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def explain(self) -> str:
        """Return why each worker got its share."""
        return self.report.explain()
