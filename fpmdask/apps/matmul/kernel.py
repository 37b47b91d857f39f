"""The panel update that is timed, and that the run itself is made of.

::

               depth          width                width
            ┌───────┐     ┌───────────┐       ┌───────────┐
      units │  A_b  │  ·  │    B_b    │ depth │           │
            │       │     └───────────┘    += │    C_b    │ units
            └───────┘                         └───────────┘

A worker that owns `units` rows of C does this once per panel of A's columns and B's rows.
"""

import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy

from fpmdask.apps.matmul.blas import Array, gemm_accumulate, uses_blas
from fpmdask.apps.matmul.spec import summed
from fpmdask.errors import KernelError
from fpmdask.timing import Deadline, Scratch, WorkerContext
from fpmdask.tuning import DEFAULT, MatmulTuning

NAME = "matmul.panel"

# Elements filled between two looks at the deadline; 1 MiB of float64.
_FILL = 1 << 17
# Numbers in the pattern that A and B repeat; odd, so that rows differ.
_PATTERN = 4099


def panel_update(
    a: Array,
    b: Array,
    c: Array,
    *,
    beta: complex = 1.0,
    threads: int = 1,
    check: Callable[[], None] | None = None,
    tuning: MatmulTuning = DEFAULT.matmul,
) -> None:
    """Compute ``c = a @ b + beta * c`` in place, in bands of rows.

    Parameters
    ----------
    a, b, c, beta, threads
        As for `gemm_accumulate`.
    check : callable, optional
        Called before each band; what it raises stops the update.
    tuning : MatmulTuning
        How much one band is.

    Notes
    -----
    Bands are large enough for BLAS not to be slower. They also keep a worker that pages from going
    through all of C once per column block of BLAS.

    Examples
    --------
    >>> import numpy as np
    >>> c = np.zeros((2, 2))
    >>> panel_update(np.eye(2), np.ones((2, 2)), c)
    >>> c.tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    rows = _band_rows(a.shape[1] * b.shape[1], c.dtype, threads, tuning)
    for top in range(0, max(1, c.shape[0]), rows):
        if check is not None:
            check()
        band = slice(top, top + rows)
        gemm_accumulate(a[band], b, c[band], beta=beta, threads=threads)


def panel_depth(
    inner: int,
    *,
    cost: float = 0.04,
    passes: int = 3,
    shallowest: int = 32,
    deepest: int = 256,
) -> int:
    """Return the depth at which DFPA stays cheap beside the product.

    Parameters
    ----------
    inner : int
        Columns of A, rows of B, >= 1.
    cost : float
        Share of the product's time that DFPA may take, > 0.
    passes : int
        Panel updates that DFPA makes: rounds times repetitions, >= 1.
    shallowest, deepest : int
        Bounds of the answer.

    Returns
    -------
    int
        At most `inner`.

    Raises
    ------
    KernelError
        For values outside these ranges.

    Notes
    -----
    One update of all rows at depth k costs k / `inner` of the product, whatever the speeds are, so
    that k = `inner` · `cost` / `passes`. Measured on one core (float64, 1024 × 8192 of C), the
    speed at depth 16, 32, 64, 128, 256 is 0.59, 0.76, 0.82, 0.95, 0.99 of that at 1024: below
    `shallowest` it is the memory that is measured, beyond `deepest` nothing is gained. With a small
    `inner` the lower bound decides, and DFPA costs more than `cost`.

    Examples
    --------
    >>> panel_depth(8192), panel_depth(65536), panel_depth(20)
    (104, 256, 20)
    """
    if not (inner >= 1 and passes >= 1 and 1 <= shallowest <= deepest and 0 < cost < math.inf):
        raise KernelError(
            f"no depth for inner={inner}, cost={cost}, passes={passes}, bounds {shallowest} … "
            f"{deepest}; counts are >= 1, the cost is > 0, the bounds are in order"
        )
    wanted = int(inner * cost / passes)
    return min(inner, deepest, max(shallowest, wanted - wanted % 8))


class PanelUpdate:
    """C_b += A_b·B_b on memory of its own; a unit is a row of C.

    Parameters
    ----------
    context : WorkerContext
        Its scratch memory is used again from round to round.
    width : int
        Columns of B and C, >= 1.
    depth : int
        Columns of A_b, rows of B_b, >= 1.
    dtype : str or dtype
        Of all three, numeric; halves are summed up in single precision.

    Raises
    ------
    KernelError
        If one of them is not allowed.

    Notes
    -----
    The values lie between 1/16 and 1/8 in magnitude, so that however often C is added to, it meets
    neither subnormal numbers nor infinity. What an earlier round filled is not filled again.

    Deviations from the paper: (1) the depth of a panel is a parameter where the paper has one block
    of b columns; (2) A and B are matrices of the timed size, not slices of the user's.

    References
    ----------
    Lastovetsky and Reddy (2009), section 3 and Fig. 3b.

    Examples
    --------
    >>> kernel = PanelUpdate(WorkerContext(), width=100, depth=10)
    >>> kernel.setup(50)
    >>> kernel.run()
    >>> kernel.teardown()
    >>> kernel.complexity(50)
    100000.0
    """

    name = NAME

    def __init__(
        self,
        context: WorkerContext,
        *,
        width: int,
        depth: int,
        dtype: npt.DTypeLike = "float64",
    ) -> None:
        kind = np.dtype(dtype)
        if kind.kind not in "biufc":
            raise KernelError(f"cannot multiply matrices of dtype {kind}; it must be numeric")
        if width < 1 or depth < 1:
            raise KernelError(f"width is {width}, depth is {depth}; both must be at least 1")
        self.context = context
        self.width, self.depth, self.dtype = int(width), int(depth), kind
        self.parameters: Mapping[str, object] = {
            "width": self.width,
            "depth": self.depth,
            "dtype": kind.name,
        }
        self.implementation = (
            f"scipy {scipy.__version__} gemm"
            if uses_blas(summed(kind))
            else f"numpy {np.__version__}"
        )
        self.deadline: Deadline | None = None
        self._arrays: tuple[Array, Array, Array] | None = None

    def setup(self, units: int) -> None:
        """Take the memory of `units` rows and fill what of it is new."""
        self._arrays = None
        a = self._filled("a", units, self.depth)
        b = self._filled("b", self.depth, self.width)
        c = self._filled("c", units, self.width)
        self._arrays = a, b, c

    def run(self) -> None:
        """Update once."""
        if self._arrays is None:
            raise KernelError(f"kernel {self.name!r} ran before setup(units)")
        panel_update(
            *self._arrays,
            threads=self.context.nthreads,
            check=self._check,
            tuning=self.context.tuning.matmul,
        )

    def teardown(self) -> None:
        """Let go of the arrays; their memory stays in the context's scratch."""
        self._arrays = None

    def complexity(self, units: int) -> float:
        """Return the floating-point operations of one update."""
        return (8.0 if self.dtype.kind == "c" else 2.0) * units * self.width * self.depth

    def nbytes(self, units: int) -> int:
        """Return the memory that `units` rows take, in bytes: parts of A and C, panel of B."""
        panels = (units + self.width) * self.depth * self.dtype.itemsize
        return panels + units * self.width * summed(self.dtype).itemsize

    def _check(self) -> None:
        if self.deadline is not None:
            self.deadline.check()

    def _filled(self, which: str, rows: int, columns: int) -> Array:
        label = f"{NAME}.{which}"
        dtype = summed(self.dtype) if which == "c" else self.dtype
        exact = which != "c"  # the others are small, B's is always as large
        array = self.context.scratch.take(label, (rows, columns), dtype, exact=exact)
        flat = array.reshape(-1)
        known = _Known.of(self.context.scratch)
        pattern = np.zeros(_FILL, dtype) if which == "c" else _pattern(dtype)
        start = known.filled(label, array)
        for low in range(start, flat.size, pattern.size):
            self._check()
            part = flat[low : low + pattern.size]
            part[...] = pattern[: part.size]
            known.note(label, array, low + part.size)
        return array

    def __repr__(self) -> str:
        return f"PanelUpdate(width={self.width}, depth={self.depth}, dtype={self.dtype.name!r})"


class _Known:
    """What of the buffers of one `Scratch` is filled: a grown buffer is a new one."""

    _by_scratch: ClassVar["weakref.WeakKeyDictionary[Scratch, _Known]"] = (
        weakref.WeakKeyDictionary()
    )

    def __init__(self) -> None:
        self._labels: dict[str, tuple[weakref.ref[Any], np.dtype[Any], int]] = {}

    @classmethod
    def of(cls, scratch: Scratch) -> "_Known":
        """Return the knowledge about `scratch`, which ends with it."""
        return cls._by_scratch.setdefault(scratch, cls())

    def filled(self, label: str, array: Array) -> int:
        """Return how many leading elements of the array's buffer hold the pattern."""
        owner, dtype, count = self._labels.get(label, (None, None, 0))
        same = owner is not None and owner() is _owner(array) and dtype == array.dtype
        return count if same else 0

    def note(self, label: str, array: Array, count: int) -> None:
        """Remember that the first `count` elements are filled."""
        self._labels[label] = weakref.ref(_owner(array)), array.dtype, count


def _owner(array: Array) -> Any:
    """Return the object that owns the array's memory."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner


def _pattern(dtype: np.dtype[Any]) -> Array:
    """Return numbers in ±[1/16, 1/8), ones for integers, as many whole patterns as fill a chunk."""
    repeats = _FILL // _PATTERN
    if dtype.kind in "biu":
        return np.ones(repeats * _PATTERN, dtype)
    steps = np.arange(_PATTERN) * 1103 % _PATTERN
    values = (1 + steps / _PATTERN) / 16 * np.where(steps % 2, -1.0, 1.0)
    return np.tile(values.astype(dtype), repeats)


def _band_rows(
    operations_per_row: int, dtype: np.dtype[Any], threads: int, tuning: MatmulTuning
) -> int:
    if uses_blas(dtype):
        return tuning.blas_band_rows
    return threads * max(1, int(tuning.numpy_band_operations / max(1, 2 * operations_per_row)))
