"""The Zarr array that C is written to: what it may be, and who writes to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from distributed import get_worker

from fpmdask.apps.matmul.client.checkpoint import MARK
from fpmdask.errors import PartitionError
from fpmdask.runtime.client.zarr_target import writable
from fpmdask.runtime.zarr_storage import Marked, write_unit


def check_out(out: Any, sides: Sequence[int], index: Sequence[Any], dtype: np.dtype[Any]) -> Any:
    """Return `out` as it is in its store, or refuse what C cannot be written to.

    Parameters
    ----------
    out
        What the caller gave.
    sides : sequence of int
        Rows and columns of C.
    index : sequence
        As `as_matrices` returns it: an axis with 0 is not in `out`.
    dtype : numpy.dtype
        Of C.

    Raises
    ------
    PartitionError
        As `writable`.
    """
    shape = tuple(size for size, at in zip(sides, index, strict=True) if at != 0)
    opened = writable(out, shape, dtype, "C")
    # with the next attribute, the caller's would write back what it remembers of an earlier call
    out.metadata.attributes.pop(MARK, None)
    return opened


class Target(Marked):
    """`out` as tasks write to it: only a worker that finds this call's mark there does.

    Parameters
    ----------
    out
        The array as `check_out` returned it.
    run
        What `Checkpoint` put into its attributes.
    index
        An axis of C with 0 is not in `out`.
    names
        Names or addresses of those that may write; None: all.
    """

    def __init__(
        self, out: Any, run: str, index: Sequence[Any], names: Sequence[str] | None
    ) -> None:
        super().__init__(out, MARK, run)
        self.index, self.names = tuple(index), names

    @property
    def unit(self) -> tuple[int, int]:
        """Rows and columns of C that are written as one."""
        sizes = iter(write_unit(self.out))
        rows, columns = (1 if at == 0 else next(sizes) for at in self.index)
        return rows, columns

    def __setitem__(self, region: Any, block: np.ndarray) -> None:
        if not self.found():
            raise PartitionError(self.elsewhere([str(get_worker().name)]))
        try:
            self.out[region] = block
        except OSError as error:
            says = (
                f"worker {get_worker().name} cannot write to out at {self.out.store_path} "
                f"({error}); mend this and call again: tiles that are written are kept"
            )
            raise OSError(*filter(None, (error.errno, says))) from error
