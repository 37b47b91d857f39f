"""What is to be placed anew: rows of collections, and where these may be cut. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NotRequired, TypedDict

import numpy as np

from fpmdask.runtime.rows import Rows, Wanted
from fpmdask.runtime.wire import Messages, Packed, Request, Step, StepAnswer, TeamOrder


class Cuts:
    """Where rows may be cut, and how many units are before each such place.

    Parameters
    ----------
    count
        How many rows there are.
    rows, units
        Of each place, from 0 to all of them. None: anywhere, and a row is a unit.

    Examples
    --------
    Six rows, of which the second half cannot be parted and counts twice:

    >>> cuts = Cuts(6, [0, 1, 2, 3, 6], [0, 1, 2, 3, 9])
    >>> cuts.units(4), cuts.nearest(6.5), cuts.row(4), cuts.place(5), Cuts(6).units(5)
    (9.0, 4, 6, 4, 5.0)
    """

    def __init__(self, count: int, rows: Any = None, units: Any = None) -> None:
        self.count = count
        self._rows = None if rows is None else np.asarray(rows, np.int64)
        self._units = None if units is None else np.asarray(units, np.float64)

    @property
    def anywhere(self) -> bool:
        """Whether rows are units, and may be cut anywhere."""
        return self._rows is None

    @property
    def last(self) -> int:
        """The place behind all rows; the first one is 0."""
        return self.count if self._rows is None else len(self._rows) - 1

    @property
    def total(self) -> float:
        """All units."""
        return self.units(self.last)

    def units(self, place: int) -> float:
        """Return the units before a place."""
        return float(place if self._units is None else self._units[place])

    def before(self, rows: Any) -> Any:
        """Return the units before some rows, in proportion where these are no places."""
        if self._rows is None or self._units is None:
            return np.asarray(rows, np.float64)
        return np.interp(rows, self._rows, self._units)

    def row(self, place: int) -> int:
        """Return the row at which a place is."""
        return place if self._rows is None else int(self._rows[place])

    def place(self, row: int) -> int:
        """Return the place that is nearest to a row. O(log places)."""
        return row if self._rows is None else _nearest(self._rows, row)

    def nearest(self, units: float) -> int:
        """Return the place before which there are about so many units. O(log places)."""
        if self._units is None:
            return min(max(0, round(units)), self.count)
        return _nearest(self._units, units)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        tables = (None if t is None else t.tobytes() for t in (self._rows, self._units))
        return {"count": self.count, **dict(zip(("rows", "units"), tables, strict=True))}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cuts:
        """Rebuild them from `to_json`."""
        if data["rows"] is None:
            return cls(data["count"])
        rows, units = (np.frombuffer(data["rows"], np.int64), np.frombuffer(data["units"]))
        return cls(data["count"], rows, units)


def _nearest(values: np.ndarray, wanted: float) -> int:
    at = int(np.searchsorted(values, wanted))
    if at == len(values) or (at and wanted - values[at - 1] < values[at] - wanted):
        return at - 1
    return at


@dataclass(frozen=True)
class RebalanceSpec:
    """All of it.

    Parameters
    ----------
    inputs
        The rows of each collection, as many of all.
    cuts
        Where they may be cut.
    """

    inputs: tuple[Rows, ...]
    cuts: Cuts

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        inputs = [asdict(one) for one in self.inputs]
        return {"inputs": inputs, "cuts": self.cuts.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RebalanceSpec:
        """Rebuild a spec from `to_json`."""
        inputs = tuple(map(Rows.from_json, data["inputs"]))
        return cls(inputs, Cuts.from_json(data["cuts"]))


class RebalanceRequest(Request):
    """Place rows anew.

    ``rebalance`` is a `RebalanceSpec`, ``dims`` the dimensions of the collections, ``coming`` bytes
    that are not in memory yet, the others as `Balancer.rebalance` has them.
    """

    rebalance: Mapping[str, Any]
    kernel: Packed | None
    dims: Sequence[int]
    coming: float
    distribution: Mapping[str, float] | None
    seconds: Mapping[str, float] | None


class KnowOrder(TeamOrder):
    """Rows that a worker's kernel is to know, with the units before some of them."""

    inputs: Sequence[Wanted]
    rows: Sequence[float]
    units: Sequence[float]
    most: float


class PlaceOrder(TeamOrder):
    """Chunks that a worker is to make: (number, rows); and pieces that it is to cut for others.

    ``serialized`` are (key, key of the chunk, start, stop); with ``views`` parts of chunks that are
    here stay views.
    """

    chunks: Sequence[tuple[int, Wanted]]
    serialized: Sequence[tuple[Any, Any, int, int]]
    views: bool


class Received(StepAnswer):
    """Bytes that came from other workers."""

    nbytes_received: int
    seconds: NotRequired[float]


class RebalanceValue(TypedDict):
    """The result's keys, and the rows of its chunks; none where all is there already."""

    name: str
    chunks: Sequence[tuple[int, int]]


KNOW = Step("fpmdask.apps.rebalance.worker:know", KnowOrder, Received)
PLACE = Step("fpmdask.apps.rebalance.worker:place", PlaceOrder, Received)
MESSAGES = Messages(RebalanceValue, (KNOW, PLACE))
