"""A call on rows, as a run has workers make it, and as Dask makes it again where that is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from fpmdask.errors import FpmdaskError, named
from fpmdask.runtime.dask_private import enforced
from fpmdask.runtime.worker.rows import cut, joined


class MetaMismatch(FpmdaskError, ValueError):
    """A function returned what is not like its meta; the text says what."""


@dataclass(frozen=True)
class LikeMeta:
    """A function of partitions, whose results are named as ``meta`` is; others are refused."""

    function: Callable[..., Any]
    meta: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the function does.

        Raises
        ------
        MetaMismatch
            For rows of other columns than meta has, and for what is a frame where meta is none, or
            none where it is one.
        """
        found = self.function(*args, **kwargs)
        if getattr(found, "shape", (1,))[:1] != (0,):  # what has no rows becomes meta
            _check_columns(found, self.meta)
        return enforced(found, self.meta)


def _check_columns(found: Any, meta: Any) -> None:
    from dask.dataframe.utils import check_matching_columns, is_dataframe_like

    if is_dataframe_like(found) != is_dataframe_like(meta):
        raise MetaMismatch(f"a {type(found).__name__}, where meta is a {type(meta).__name__}")
    if not is_dataframe_like(meta):
        return
    try:
        check_matching_columns(meta, found)
    except ValueError:
        pairs = ("not in meta", found, meta), ("missing", meta, found)
        other = {what: a.columns.difference(b.columns, sort=False) for what, a, b in pairs}
        differ = [f"{what}: {_named(columns)}" for what, columns in other.items() if len(columns)]
        raise MetaMismatch(
            f"the columns {_named(found.columns)}, where meta has {_named(meta.columns)} "
            f"({'; '.join(differ) or 'the order differs'})"
        ) from None


def _named(columns: Iterable[Any]) -> str:
    return named([*map(repr, columns)])


@dataclass(frozen=True)
class Place:
    """An argument that is a block of a collection, by its number."""

    number: int


@dataclass(frozen=True)
class Call:
    """The user's function with its arguments.

    Parameters
    ----------
    functions
        Name of a worker resource → function; "" → that of all others.
    arguments
        Positional ones, a `Place` for each block.
    keywords
        The others.
    infos
        Of each chunk: ``block_info`` and ``block_id``, where the function takes them.
    """

    functions: Mapping[str, Callable[..., Any]]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    infos: Sequence[Mapping[str, Any]] = ()

    def __call__(self, blocks: Sequence[Any], resource: str, chunk: int) -> Any:
        """Return the function's result for blocks of the collections."""
        given = [blocks[a.number] if isinstance(a, Place) else a for a in self.arguments]
        info = self.infos[chunk] if self.infos else {}
        return self.functions[resource](*given, **self.keywords, **info)


Layout = Sequence[tuple[int | None, Sequence[tuple[int, int]]]]  # axis, (start, stop) of pieces


def again(call: bytes, chunk: int, layout: Layout, *chunks: Any) -> Any:
    """Task: a block of the result, from all chunks that have rows of it.

    Parameters
    ----------
    call
        The pickled `Call`.
    chunk
        Which one of the first collection this is, where the function is told.
    layout
        For each collection where it is cut, and the rows of each of its chunks.
    chunks
        All of these, one collection after the other.
    """
    rest = iter(chunks)
    blocks = [
        joined([cut(next(rest), axis, start, stop) for start, stop in rows], axis)
        for axis, rows in layout
    ]
    return cloudpickle.loads(call)(blocks, "", chunk)
