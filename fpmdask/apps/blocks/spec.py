"""What is to be computed: rows of collections, and the calls on them. Plain data on its way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fpmdask.runtime.rows import Span, edges_of, pieces


@dataclass(frozen=True)
class Input:
    """One collection among the arguments.

    Parameters
    ----------
    keys
        Of its chunks along the axis, or partitions, in order.
    lengths
        Rows of each.
    axis
        Along which it is cut; None: every call gets all of it, which is one chunk.
    dtype, shape
        Of a NumPy array, the length of the axis 0 there. None: chunks of any other type.
    """

    keys: tuple[Any, ...]
    lengths: tuple[int, ...]
    axis: int | None = 0
    dtype: str | None = None
    shape: tuple[int, ...] | None = None

    def pieces(self, span: Span) -> list[tuple[int, int, int]]:
        """Return (chunk, start, stop) of what a call on a span of rows gets."""
        if self.axis is None:
            return [(0, 0, self.lengths[0])]
        return pieces(edges_of(self.lengths), span)


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

    inputs: tuple[Input, ...]
    whole: bool = False
    row_nbytes: int = 0
    resources: tuple[str, ...] = ()
    cuts: tuple[int, ...] | None = None

    @property
    def edges(self) -> list[int]:
        """Return where calls may be cut, if they are not cut anywhere."""
        return edges_of(self.cuts if self.cuts is not None else self.inputs[0].lengths)

    @property
    def rows(self) -> int:
        """How many are handed out."""
        return sum(self.inputs[0].lengths)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BlocksSpec:
        """Rebuild a spec from `to_json`, also where lists have become tuples on the way."""

        def key(of: Any) -> Any:
            return tuple(of) if isinstance(of, Sequence) and not isinstance(of, str) else of

        inputs = tuple(
            Input(
                tuple(map(key, one["keys"])),
                tuple(one["lengths"]),
                one["axis"],
                one["dtype"],
                None if one["shape"] is None else tuple(one["shape"]),
            )
            for one in data["inputs"]
        )
        cuts = None if data["cuts"] is None else tuple(data["cuts"])
        return cls(inputs, data["whole"], data["row_nbytes"], tuple(data["resources"]), cuts)
