"""What is multiplied: shapes, dtype, chunks and keys, as plain data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NotRequired, TypedDict

import numpy as np

from fpmdask.errors import PartitionError
from fpmdask.runtime.wire import (
    Asked,
    Event,
    Messages,
    Nothing,
    Question,
    Request,
    Step,
    StepAnswer,
    StepOrder,
)

Chunks = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class MatmulSpec:
    """A product C = A·B of chunked matrices, as plain data.

    Parameters
    ----------
    shape
        (M, K, N): A is M × K, B is K × N, C is M × N; each > 0.
    dtype
        Of C, numeric.
    a_chunks, b_chunks
        Rows and columns of the blocks, as dask has them.
    a_name, b_name
        Names of the keys ``(name, i, j)``.
    transposed
        Whether A and B here are the transposes of what was given as B and A: rows here are columns
        of the chunks, and the key of block (i, j) is ``(name, j, i)``.

    Raises
    ------
    PartitionError
        For empty matrices, chunks that do not sum to the shape or are unknown, and dtypes that
        cannot be multiplied.

    Examples
    --------
    >>> spec = MatmulSpec((4, 3, 2), np.dtype("f4"), ((2, 2), (3,)), ((3,), (2,)), "a", "b")
    >>> MatmulSpec.from_json(spec.to_json()) == spec
    True
    >>> spec.transpose().shape, spec.transpose().transpose() == spec
    ((2, 3, 4), True)
    """

    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    a_chunks: Chunks
    b_chunks: Chunks
    a_name: str
    b_name: str
    transposed: bool = False

    def __post_init__(self) -> None:
        m, k, n = self.shape
        if min(self.shape) < 1:
            raise PartitionError(
                f"A is {m} × {k} and B is {k} × {n}; an empty matrix cannot be shared out"
            )
        _check_dtype("C", self.dtype)
        for name, chunks, shape in (("A", self.a_chunks, (m, k)), ("B", self.b_chunks, (k, n))):
            for axis, sizes, length in zip(("rows", "columns"), chunks, shape, strict=True):
                _check_chunks(name, axis, sizes, length)

    @classmethod
    def build(
        cls,
        *,
        shape: Sequence[float],
        inner: float,
        dtypes: Sequence[Any],
        a_chunks: Sequence[Sequence[float]],
        b_chunks: Sequence[Sequence[float]],
        a_name: str,
        b_name: str,
    ) -> "MatmulSpec":
        """Return the spec of A·B from what the two arrays say.

        Parameters
        ----------
        shape
            (rows of A, columns of A, columns of B).
        inner
            Rows of B, which must be the columns of A.
        dtypes
            Of A and B; that of C is ``np.result_type`` of them, as in ``np.matmul``.
        a_chunks, b_chunks, a_name, b_name
            As for the class.

        Returns
        -------
        MatmulSpec

        Raises
        ------
        PartitionError
            As for the class, and if A and B do not fit together.
        """
        for name, sizes in (("A", a_chunks), ("B", b_chunks)):
            if any(math.isnan(size) for axis in sizes for size in axis):
                raise PartitionError(
                    f"{name} has chunks of unknown size; call {name}.compute_chunk_sizes() first"
                )
        if shape[1] != inner:
            raise PartitionError(
                f"A is {shape[0]} × {shape[1]} and B is {inner} × {shape[2]}; "
                "the columns of A must be the rows of B"
            )
        for name, dtype in zip(("A", "B"), dtypes, strict=True):
            _check_dtype(name, np.dtype(dtype))
        m, k, n = map(int, shape)
        common = np.result_type(*dtypes)
        return cls((m, k, n), common, _ints(a_chunks), _ints(b_chunks), a_name, b_name)

    @cached_property
    def keys(self) -> tuple[tuple[str, int, int], ...]:
        """The keys of all chunks of A and B, made once."""
        return tuple(
            self.key(name, (i, j))
            for name, (rows, columns) in (
                (self.a_name, self.a_chunks),
                (self.b_name, self.b_chunks),
            )
            for i in range(len(rows))
            for j in range(len(columns))
        )

    @cached_property
    def numbers(self) -> dict[tuple[str, int, int], int]:
        """Key of a chunk -> its place in `keys`, made once."""
        return {key: number for number, key in enumerate(self.keys)}

    def key(self, name: str, block: tuple[int, int]) -> tuple[str, int, int]:
        """Return the key of the chunk that is block (i, j) of A or B."""
        i, j = block
        return (name, j, i) if self.transposed else (name, i, j)

    def chunk_shape(self, key: Any) -> tuple[int, int]:
        """Return the rows and columns of a chunk, as it lies in memory."""
        name, row, column = key
        rows, columns = self.a_chunks if name == self.a_name else self.b_chunks
        if self.transposed:
            rows, columns = columns, rows
        return rows[row], columns[column]

    def transpose(self) -> "MatmulSpec":
        """Return the product Cᵀ = Bᵀ·Aᵀ of the same chunks."""
        m, k, n = self.shape
        return replace(
            self,
            shape=(n, k, m),
            a_chunks=self.b_chunks[::-1],
            b_chunks=self.a_chunks[::-1],
            a_name=self.b_name,
            b_name=self.a_name,
            transposed=not self.transposed,
        )

    @property
    def sums(self) -> np.dtype[Any]:
        """The dtype of C while it is summed up."""
        return summed(self.dtype)

    def check_chunk(self, key: Any, found: np.dtype[Any]) -> None:
        """Refuse a chunk of A or B that is not what its array said.

        Raises
        ------
        PartitionError
            If the dtype of C, which follows from what the arrays say, cannot hold it but for
            rounding.
        """
        if not np.can_cast(found, self.dtype, "same_kind"):
            raise PartitionError(
                f"chunk {key} has dtype {found}, and by what its dask array says the product is of "
                f"{self.dtype}; give the array the right dtype (map_blocks has dtype=)"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of A and B in the dtype of C."""
        m, k, n = self.shape
        return (m + n) * k * self.dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain data: numbers, strings, lists and dictionaries."""
        return {
            "shape": list(self.shape),
            "dtype": self.dtype.str,
            "a": {"name": self.a_name, "chunks": [list(axis) for axis in self.a_chunks]},
            "b": {"name": self.b_name, "chunks": [list(axis) for axis in self.b_chunks]},
            "transposed": self.transposed,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "MatmulSpec":
        """Return the spec that `to_json` described; its lists may have become tuples."""
        m, k, n = data["shape"]
        a, b = data["a"], data["b"]
        return cls(
            (m, k, n),
            np.dtype(data["dtype"]),
            _ints(a["chunks"]),
            _ints(b["chunks"]),
            a["name"],
            b["name"],
            bool(data["transposed"]),
        )


def summed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which products of that one are summed up.

    NumPy sums halves in single precision and rounds once.

    Examples
    --------
    >>> summed(np.dtype("f2")), summed(np.dtype("f8"))
    (dtype('float32'), dtype('float64'))
    """
    return np.dtype(np.float32) if dtype.char == "e" else dtype


def _check_dtype(name: str, dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "biufc":
        raise PartitionError(f"{name} has dtype {dtype}; convert it to a numeric dtype first")


def _check_chunks(name: str, axis: str, sizes: Sequence[int], length: int) -> None:
    if min(sizes, default=0) < 0 or sum(sizes) != length:
        raise PartitionError(
            f"the chunks of {name} along its {axis} are {tuple(sizes)[:8]} and sum to "
            f"{sum(sizes)}; they must be >= 0 and sum to {length}"
        )


def _ints(chunks: Sequence[Sequence[float]]) -> Chunks:
    rows, columns = chunks
    return tuple(map(int, rows)), tuple(map(int, columns))


class MatmulRequest(Request):
    """Multiply; ``product`` is a `MatmulSpec`, the others as `Balancer.matmul` has them.

    ``lazy`` has (first row, last row) of A and of B that are not in memory yet, ``loading`` bytes.
    """

    layout: str
    zones: Mapping[str, Any] | None
    distribution: Mapping[str, int] | None
    depth: int | None
    rebalance: bool
    thorough: bool
    known: bool
    product: Mapping[str, Any]
    lazy: Sequence[Any]
    loading: NotRequired[float]


Bounds = Sequence[int]  # of a tile: rows, columns; and of the corner that it lacks
Panels = Sequence[tuple[int, int]]  # ranges of K


class HelpOrder(StepOrder):
    """Multiply a tile by panels for another worker's part, a steal of number ``help``.

    ``product`` is a `MatmulSpec`, ``where`` packed `ChunkLocations`.
    """

    help: int
    tile: Bounds
    product: Mapping[str, Any]
    panels: Panels
    where: bytes
    bare: Sequence[str]


class MultiplyOrder(StepOrder):
    """Compute a tile of C as a part, in cells that ``cuts`` of rows and columns make.

    ``relay``: (key, owner) of chunks that others get here; ``taken``: where sums of steals are.
    """

    part: int
    tile: Bounds
    cuts: tuple[Sequence[int], Sequence[int]]
    product: Mapping[str, Any]
    panels: Panels
    where: bytes
    bare: Sequence[str]
    relay: Sequence[tuple[Any, str]]
    taken: Sequence[tuple[int, Sequence[Any]]]


class Multiplied(StepAnswer):
    """A share is done: what it took."""

    seconds: float
    cpu_seconds: Mapping[str, float]
    work: int
    compute_seconds: float
    wait_seconds: float
    gave_way_seconds: float
    nbytes_received: int
    nbytes: int


class WaitingForSteals(StepAnswer):
    """A share is done but for what others multiply of it."""

    waiting: Sequence[int]


class ChunksLacking(StepAnswer):
    """Keys of chunks that no holder could give."""

    missing: Sequence[Any]


class Give(TypedDict):
    """Release a tile from panel ``first`` on, for a steal."""

    give: int
    tile: Bounds
    first: int


# Where the sum of a steal is: a worker and its channel, () for nowhere.
Take = TypedDict("Take", {"take": int, "from": Sequence[Any]})


class Drop(TypedDict):
    """Nobody wants the sum any more."""

    drop: bool


class PanelReached(TypedDict):
    """A share begins a panel; operations per second of the last ones."""

    part: int
    reached: int
    pace: float


class GiveRefused(TypedDict):
    """A share has gone beyond where a steal was to begin."""

    part: int
    refused: int


class ShareDone(Event):
    """A worker has computed its share."""

    worker: str
    units: float
    seconds_taken: float


class Stolen(Event):
    """A worker helps another one."""

    worker: str
    helps: str
    tile: Bounds
    panels: int


class Repartitioned(Event):
    """Shares of a lost worker go to others: (worker, tile)."""

    reason: str
    tiles: Sequence[tuple[str, Bounds]]


class WaitingForChunks(Event):
    """So many lost chunks are waited for."""

    count: int


class WaitingForWorkers(Event):
    """Nobody is left: for so many seconds another worker is waited for."""

    patience: float


class LoadAsked(Asked):
    """Read lazy inputs: worker → numbers of the chunks that it is to read."""

    reads: Mapping[str, Sequence[int]]


class SumsAsked(Asked):
    """Multiply ranges of K: worker → lines of it, None where all multiply what they hold."""

    lines: Mapping[str, int] | None


class SumsAnswer(TypedDict):
    """What workers tell of their sums."""

    shares: Sequence[Mapping[str, Any]]


class MatmulValue(TypedDict):
    """The result's keys, and the sizes of its chunks; nothing where the client has it."""

    name: NotRequired[str]
    rows: NotRequired[Sequence[int]]
    columns: NotRequired[Sequence[int]]


MULTIPLY = Step(
    "fpmdask.apps.matmul.worker.share:multiply_share",
    MultiplyOrder,
    Multiplied | WaitingForSteals | ChunksLacking,
    Give | Take,
    PanelReached | GiveRefused,
)
HELP = Step(
    "fpmdask.apps.matmul.worker.share:help_share", HelpOrder, Multiplied | ChunksLacking, Drop
)
MESSAGES = Messages(
    MatmulValue,
    (MULTIPLY, HELP),
    {
        "share": ShareDone,
        "help": Stolen,
        "re-partitioned": Repartitioned,
        "waiting for chunks": WaitingForChunks,
        "waiting for workers": WaitingForWorkers,
    },
    {"load": Question(LoadAsked, Nothing), "sums": Question(SumsAsked, SumsAnswer)},
)
