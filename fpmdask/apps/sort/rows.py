"""What workers do with the rows of a frame that is sorted: keys first, rows once they are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pandas as pd
from dask.base import tokenize
from dask.sizeof import sizeof

from fpmdask.apps.sort.encode import (
    MOST_WORDS,
    NUMBER,
    Field,
    Seen,
    fields,
    packed,
    prefixes,
    row_numbers,
    same_prefixes,
    seen,
)
from fpmdask.errors import PartitionError

# Rows that become keys at once: what is made of so few on the way stays in the processor's cache,
# and below the size from which malloc maps fresh memory every time.
BLOCK = 16_000
# Stands for the index where columns are named; no label is equal to it.
INDEX = ("fpmdask", "index", "of a frame")
# Dtypes within such a group are brought to that of the frame's meta where partitions differ.
FAMILIES = ("biuf", "M", "m")


@dataclass(frozen=True)
class Order:
    """By what a frame is sorted: labels of columns, or the name of its index where `level` says so.

    ``dtypes`` are those of the frame's meta.
    """

    by: tuple[Any, ...]
    level: tuple[bool, ...]
    ascending: tuple[bool, ...]
    na_position: str
    dtypes: tuple[Any, ...]

    def columns(self, frame: pd.DataFrame) -> Iterator[tuple[Any, pd.Series]]:
        """Yield the name and the values of each key."""
        for name, level, dtype in zip(self.by, self.level, self.dtypes, strict=True):
            column = pd.Series(frame.index) if level else frame[name]
            yield name, _as_declared(column, name, dtype)


@dataclass(frozen=True)
class Keys:
    """How rows become keys.

    A row's number is that of its partition, and in the last `local_bits` its place therein. Without
    `whole`, the keys are prefixes, and rows of one prefix have still to be put in order.
    ``categories`` are the dtypes of columns (of the index under `INDEX`) that differ in partitions.
    """

    order: Order
    how: tuple[Field, ...]
    words: int
    row_bits: int
    whole: bool
    local_bits: int
    categories: dict[Any, pd.CategoricalDtype]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The keys' dtype."""
        return np.dtype(np.uint64 if self.words == 1 else f"S{8 * self.words}")


def _as_declared(column: pd.Series, name: Any, dtype: Any) -> pd.Series:
    """Return a key in the frame's dtype: ordinals of different ones have no common order."""
    found = column.dtype
    if found == dtype:
        return column
    if not len(column):
        return pd.Series([], dtype=dtype)
    both = found, dtype
    if all(isinstance(kind, pd.CategoricalDtype) for kind in both):
        return column  # the union of their categories is taken
    if all(_is_text(kind) for kind in both):
        return column
    if any(all(getattr(kind, "kind", "O") in family for kind in both) for family in FAMILIES):
        try:
            return column.astype(dtype)
        except (TypeError, ValueError):
            pass
    raise PartitionError(
        f"{name!r} has dtype {found} in a partition, its dask frame says {dtype}; give it one with "
        "astype, or the right meta where it is made"
    )


def _is_text(dtype: Any) -> bool:
    return isinstance(dtype, pd.StringDtype) or getattr(dtype, "kind", "") == "O"


# ---- before the sort


@dataclass(frozen=True)
class Look:
    """What one partition says of itself: rows, keys, and column -> what its categories are."""

    rows: int
    seen: tuple[Seen, ...]
    categories: dict[Any, str]


def look(order: Order, partitions: Sequence[int], *frames: pd.DataFrame) -> list[Look]:
    """Task: look at the keys of partitions."""
    return [look_at(frame, order) for frame in frames]


def look_at(frame: pd.DataFrame, order: Order) -> Look:
    """Look at the keys of one partition."""
    found = []
    for name, column in order.columns(frame):
        if isinstance(column.dtype, pd.CategoricalDtype):
            last = max(0, len(column.cat.categories) - 1)
            found.append(Seen(NUMBER, int(column.isna().sum()), 0, last))
        else:
            found.append(seen(column, name))
    tokens = {name: str(tokenize(dtype)) for name, dtype in categories(frame).items()}
    return Look(len(frame), tuple(found), tokens)


def categories(frame: pd.DataFrame) -> dict[Any, pd.CategoricalDtype]:
    """Return column -> dtype of those that are categories."""
    columns = [*zip(frame.columns, frame.dtypes, strict=True), (INDEX, frame.index.dtype)]
    return {name: dtype for name, dtype in columns if isinstance(dtype, pd.CategoricalDtype)}


def encode(keys: Keys, partitions: Sequence[int], *frames: pd.DataFrame) -> np.ndarray:
    """Task: the keys of partitions' rows."""
    made = np.empty(sum(map(len, frames)), keys.dtype)
    end = 0
    for partition, frame in zip(partitions, frames, strict=True):
        columns = _columns(frame, keys)
        for low in range(0, len(frame), BLOCK):
            high = min(low + BLOCK, len(frame))
            first = partition << keys.local_bits
            numbers = np.arange(first + low, first + high)
            bits = _bits([(name, column.iloc[low:high]) for name, column in columns], keys)
            made[end : end + numbers.size] = packed(bits, numbers, keys.words, keys.row_bits)
            end += numbers.size
    return made


def sample(count: int, keys: Keys, partitions: Sequence[int], *frames: pd.DataFrame) -> np.ndarray:
    """Task: the keys of about `count` rows of each partition, without row numbers.

    They are as long as they may be.
    """
    found = []
    for frame in frames:
        some = frame.iloc[:: max(1, len(frame) // count)]
        numbers = np.zeros(len(some), np.int64)
        found.append(packed(_bits(_columns(some, keys), keys), numbers, MOST_WORDS, 0))
    return np.concatenate(found)


def _columns(frame: pd.DataFrame, keys: Keys) -> list[tuple[Any, pd.Series]]:
    return [*keys.order.columns(with_categories(frame, keys))]


def _bits(columns: Sequence[tuple[Any, pd.Series]], keys: Keys) -> Iterator[tuple[np.ndarray, int]]:
    for (name, column), how in zip(columns, keys.how, strict=True):
        yield from fields(column, name, how)


def with_categories(frame: pd.DataFrame, keys: Keys) -> pd.DataFrame:
    """Return a frame whose categories are those of all partitions."""
    if not keys.categories:
        return frame
    columns = {name: dtype for name, dtype in keys.categories.items() if name != INDEX}
    frame = frame.astype(columns)
    if INDEX in keys.categories:
        frame = frame.set_axis(frame.index.astype(keys.categories[INDEX]))
    return frame


# ---- after the sort


def ends(part: np.ndarray, keys: Keys) -> tuple[int, bytes, bytes]:
    """Task: the number of keys in a part, and the prefixes of the first and the last one."""
    if not part.size:
        return 0, b"", b""
    first, last = prefixes(part[[0, -1]], keys.row_bits)
    return part.size, first.tobytes(), last.tobytes()


def leading(part: np.ndarray, keys: Keys, prefix: bytes) -> np.ndarray:
    """Task: the keys at the begin of a part that have a prefix."""
    return part[: _count_leading(part, keys, prefix)].copy()


def _count_leading(part: np.ndarray, keys: Keys, prefix: bytes) -> int:
    wanted = np.frombuffer(prefix, np.uint64)
    return int(np.count_nonzero((prefixes(part, keys.row_bits) == wanted).all(axis=1)))


@dataclass(frozen=True)
class Wanted:
    """The rows of one part of the result.

    Parameters
    ----------
    rows
        For each holder of partitions, which of its rows are wanted, in their order in the part.
    place
        For each of these, one after the other, its place in the part.
    same
        Whether a row has the prefix of the one before it; None where that does not matter.
    """

    rows: tuple[np.ndarray, ...]
    place: np.ndarray
    same: np.ndarray | None


@dataclass(frozen=True)
class Holders:
    """Where the rows are: a holder has its partitions one below the other.

    Parameters
    ----------
    count
        How many holders there are.
    of
        The number of the holder of each partition.
    begin
        Where each partition begins there.
    """

    count: int
    of: np.ndarray
    begin: np.ndarray


def wanted(
    part: np.ndarray, keys: Keys, holders: Holders, gone: bytes | None, *more: np.ndarray
) -> Wanted:
    """Task: who holds the rows of a part.

    Parameters
    ----------
    part
        Its keys.
    gone, more
        The prefix whose keys an earlier part takes; what this one takes of later ones.
    """
    if gone is not None:
        part = part[_count_leading(part, keys, gone) :]
    if more:
        part = np.concatenate([part, *more])
    first = holders.begin - (np.arange(holders.begin.size) << keys.local_bits)
    rows = np.empty(part.size, np.int64)
    whose = np.empty(part.size, holders.of.dtype)
    same = None if keys.whole else np.empty(part.size, bool)
    for low in range(0, part.size, BLOCK):
        here = slice(low, low + BLOCK)
        numbers = row_numbers(part[here], keys.row_bits)
        partitions = numbers >> keys.local_bits
        whose[here] = holders.of[partitions]
        rows[here] = numbers + first[partitions]
        if same is not None:
            before = min(1, low)
            same[here] = same_prefixes(part[low - before : low + BLOCK], keys.row_bits)[before:]
    place = np.argsort(whose, kind="stable")  # by counting: `whose` has one or two bytes
    edges = np.cumsum(np.bincount(whose, minlength=holders.count))[:-1]
    return Wanted(tuple(np.split(rows[place], edges)), place, same)


def rows_of(found: Wanted, holder: int) -> np.ndarray:
    """Task: the rows wanted of one holder, in as few bytes as they need."""
    rows = found.rows[holder]
    return rows.astype(np.min_scalar_type(int(rows.max(initial=0))))


def joined(keys: Keys, *frames: pd.DataFrame) -> pd.DataFrame:
    """Task: the partitions of a holder, one below the other."""
    return together([with_categories(frame, keys) for frame in frames])


def cut(frame: pd.DataFrame, rows: np.ndarray) -> pd.DataFrame:
    """Task: the rows of a holder that a part of the result wants of it."""
    return frame.take(rows)


def together(pieces: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return frames one below the other; those without rows have no say in dtypes."""
    some = [piece for piece in pieces if len(piece)] or pieces[:1]
    return pd.concat(some) if len(some) > 1 else some[0]


def assemble(keys: Keys, found: Wanted, *pieces: pd.DataFrame) -> pd.DataFrame:
    """Task: one partition of the result."""
    place = found.place
    if found.same is not None and found.same.any():
        place = _untied(pieces, place, found.same, keys.order)
    return interleaved(pieces, place)


def interleaved(pieces: Sequence[pd.DataFrame], place: np.ndarray) -> pd.DataFrame:
    """Return a frame of the rows of several, each of which has its place.

    A row is written once; columns of objects and of extension dtypes are put one below the
    other first.

    Examples
    --------
    >>> pieces = pd.DataFrame({"a": [1, 3]}, [0, 2]), pd.DataFrame({"a": [2]}, [1])
    >>> interleaved(pieces, np.array([0, 2, 1])).a.to_dict()
    {0: 1, 1: 2, 2: 3}
    """
    kinds = {(*piece.dtypes, piece.index.dtype) for piece in pieces}
    plain = all(isinstance(kind, np.dtype) and kind.kind != "O" for kind in chain(*kinds))
    if not plain or len(kinds) > 1 or any(type(piece) is not pd.DataFrame for piece in pieces):
        order = np.empty_like(place)
        order[place] = np.arange(place.size)
        return together(pieces).take(order)
    places = np.split(place, np.cumsum([len(piece) for piece in pieces])[:-1])

    def column(n: int | None) -> np.ndarray:
        parts = [piece.index if n is None else piece.iloc[:, n] for piece in pieces]
        made = np.empty(place.size, parts[0].dtype)
        for part, at in zip(parts, places, strict=True):
            made[at] = part.to_numpy()
        return made

    like = pieces[0]
    columns = {n: column(n) for n in range(like.shape[1])}
    made = pd.DataFrame(columns, pd.Index(column(None), name=like.index.name), copy=False)
    return made.set_axis(like.columns, axis=1).__finalize__(like)


def nbytes(*pieces: pd.DataFrame | np.ndarray) -> int:
    """Task: the bytes of what comes from other workers or goes to them."""
    return sum(map(sizeof, pieces))


def _untied(
    pieces: Sequence[pd.DataFrame], place: np.ndarray, same: np.ndarray, order: Order
) -> np.ndarray:
    """Return the places of rows where those of one prefix are sorted by their whole keys."""
    tied = same.copy()
    tied[:-1] |= same[1:]
    where = np.flatnonzero(tied[place])
    edges = np.cumsum([0, *map(len, pieces)])
    few = [
        piece.take(where[np.searchsorted(where, low) : np.searchsorted(where, high)] - low)
        for piece, (low, high) in zip(pieces, pairwise(edges), strict=True)
    ]
    so_far = np.argsort(place[where])
    where = where[so_far]
    at = place[where]
    values = {0: np.cumsum(~same[at])}
    for n, (_, column) in enumerate(order.columns(together(few).take(so_far)), 1):
        values[n] = column.array
    found = pd.DataFrame(values).sort_values(
        [*values],
        ascending=[True, *order.ascending],
        na_position=order.na_position,
        kind="stable",
    )
    made = place.copy()
    made[where[found.index.to_numpy()]] = at
    return made


def bounds(frame: pd.DataFrame) -> tuple[Any, Any] | None:
    """Task: the first and the last label of the index."""
    return (frame.index[0], frame.index[-1]) if len(frame) else None
