"""What is to be computed: rows of collections, and the calls on them. Plain data on its way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NotRequired, TypedDict

from fpmdask.errors import PartitionError
from fpmdask.runtime.rows import Rows, Wanted, edges_of
from fpmdask.runtime.wire import (
    ErrorFacts,
    Messages,
    Packed,
    Progressed,
    Request,
    Step,
    StepAnswer,
    StepOrder,
)


@dataclass(frozen=True)
class BlocksSpec:
    """All of it.

    Parameters
    ----------
    inputs
        The first one's rows are handed out; the others that are cut have as many.
    whole
        Whether each chunk of the first one is a call of its own.
    row_nbytes
        Bytes of a row of all that is cut: what a speed depends on beside the function.
    resources
        Names of the worker resources of which each has a function of its own.
    cuts
        Rows of each call, where the caller says so.
    """

    inputs: tuple[Rows, ...]
    whole: bool = False
    row_nbytes: int = 0
    resources: tuple[str, ...] = ()
    cuts: tuple[int, ...] | None = None

    @property
    def edges(self) -> list[int]:
        """Return where calls may be cut, if they are not cut anywhere."""
        return self.inputs[0].edges if self.cuts is None else edges_of(self.cuts)

    @property
    def rows(self) -> int:
        """How many are handed out."""
        return self.inputs[0].count

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BlocksSpec:
        """Rebuild a spec from `to_json`."""
        inputs = tuple(map(Rows.from_json, data["inputs"]))
        cuts = None if data["cuts"] is None else tuple(data["cuts"])
        return cls(inputs, data["whole"], data["row_nbytes"], tuple(data["resources"]), cuts)


def check_shapes(
    shapes: Sequence[Sequence[int]], place: tuple[int, int], sizes: Sequence[int | None]
) -> None:
    """Refuse blocks that do not make one array.

    Parameters
    ----------
    shapes
        Of all blocks.
    place
        Dimensions that are expected, and which one may have several lengths.
    sizes
        Lengths that are expected, None for any.

    Raises
    ------
    PartitionError
        With what was found.
    """
    ndim, at = place
    if wrong := {len(shape) for shape in shapes} - {ndim}:
        raise PartitionError(
            f"the function returned blocks of {min(wrong)} dimensions, {ndim} were expected; give "
            "drop_axis and new_axis"
        )
    for axis, size in enumerate(sizes):
        found = {shape[axis] for shape in shapes}
        if axis != at and len(found) > 1:
            raise PartitionError(
                f"the function returned blocks of lengths {sorted(found)} on axis {axis}; only "
                f"axis {at} may have several"
            )
        if size is not None and found != {size}:
            raise PartitionError(
                f"chunks says {size} on axis {axis}, the function returned blocks of {min(found)}; "
                "correct it, or leave it out"
            )


class BlocksRequest(Request):
    """Call a function on blocks.

    ``blocks`` is a `BlocksSpec`, ``place`` the result's dimensions and the one that is cut,
    ``sizes`` what its blocks must be along it, ``coming`` bytes that are not in memory yet.
    """

    blocks: Mapping[str, Any]
    call: Packed
    distribution: Mapping[str, int] | str | None
    place: Sequence[int]
    sizes: Any
    coming: NotRequired[float]


class ComputeOrder(StepOrder):
    """Calls on a worker: (number, chunk, rows of each collection).

    ``resource`` picks the function.
    """

    channels: Mapping[str, tuple[str, int]]
    bare: Sequence[str]
    resource: str
    calls: Sequence[tuple[int, int, Sequence[Wanted]]]


class MadeBlock(TypedDict):
    """The result of a call, which the worker keeps."""

    number: int
    shape: Sequence[int]
    nbytes: int
    waiting: float
    computing: float


class Made(StepAnswer):
    """All calls of an order were made."""

    made: Sequence[MadeBlock]
    nbytes_received: int


class CallRaised(StepAnswer):
    """The user's function has raised."""

    raised: ErrorFacts
    number: int


class CallUnlike(StepAnswer):
    """The user's function has returned ``unlike``, which meta is not."""

    unlike: str
    number: int


class SomeMade(TypedDict):
    """Calls of an order that are made so far."""

    made: Sequence[int]


class Computed(Progressed):
    """A worker has made the calls of an order."""

    worker: str


class BlocksValue(TypedDict):
    """The result's keys, and of each block: its rows, its shape, its chunk."""

    name: str
    blocks: Sequence[tuple[int, int, Sequence[int], int]]


COMPUTE = Step(
    "fpmdask.apps.blocks.worker:compute",
    ComputeOrder,
    Made | CallRaised | CallUnlike,
    event=SomeMade,
)
MESSAGES = Messages(BlocksValue, (COMPUTE,), {"computed": Computed})
