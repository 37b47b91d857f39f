"""What workers do with the rows of a frame that is sorted: keys first, rows once they are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from dask.base import tokenize

from fpmdask.apps.sort.encode import (
    MOST_WORDS,
    NUMBER,
    Field,
    Seen,
    fields,
    packed,
    prefixes,
    row_numbers,
    seen,
)
from fpmdask.errors import PartitionError

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
    """How rows become keys, and where in the whole frame each partition begins.

    Without `whole`, the keys are prefixes, and rows of one prefix have still to be put in order.
    ``categories`` are the dtypes of columns (of the index under `INDEX`) that differ in partitions.
    """

    order: Order
    how: tuple[Field, ...]
    words: int
    row_bits: int
    whole: bool
    starts: np.ndarray
    categories: dict[Any, pd.CategoricalDtype]


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


def look(frame: pd.DataFrame, order: Order) -> Look:
    """Task: look at the keys of a partition."""
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


def encode(frame: pd.DataFrame, keys: Keys, partition: int) -> np.ndarray:
    """Task: the keys of a partition's rows."""
    begin = int(keys.starts[partition])
    rows = np.arange(begin, begin + len(frame))
    return packed(_bits(frame, keys), rows, keys.words, keys.row_bits)


def sample(frame: pd.DataFrame, keys: Keys, count: int) -> np.ndarray:
    """Task: the keys of about so many rows, as long as they may be, without row numbers."""
    some = frame.iloc[:: max(1, len(frame) // count)]
    return packed(_bits(some, keys), np.zeros(len(some), np.int64), MOST_WORDS, 0)


def _bits(frame: pd.DataFrame, keys: Keys) -> Iterator[tuple[np.ndarray, int]]:
    frame = with_categories(frame, keys)
    for (name, column), how in zip(keys.order.columns(frame), keys.how, strict=True):
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
        For each holder of partitions, the numbers of rows wanted of it, ascending.
    place
        Where each row of the part is in these, one after the other.
    same
        Whether a row has the prefix of the one before it; None where that does not matter.
    """

    rows: tuple[np.ndarray, ...]
    place: np.ndarray
    same: np.ndarray | None


def wanted(
    part: np.ndarray,
    keys: Keys,
    holder: np.ndarray,
    count: int,
    gone: bytes | None,
    *more: np.ndarray,
) -> Wanted:
    """Task: who holds the rows of a part.

    Parameters
    ----------
    part
        Its keys.
    holder, count
        The number of the holder of each partition, and how many holders there are.
    gone, more
        The prefix whose keys an earlier part takes; what this one takes of later ones.
    """
    if gone is not None:
        part = part[_count_leading(part, keys, gone) :]
    if more:
        part = np.concatenate([part, *more])
    rows = row_numbers(part, keys.row_bits)
    same = None
    if not keys.whole:
        prefix = prefixes(part, keys.row_bits)
        same = np.zeros(rows.size, bool)
        same[1:] = (prefix[1:] == prefix[:-1]).all(axis=1)
    whose = holder[np.searchsorted(keys.starts, rows, "right") - 1]
    order = _order(whose << keys.row_bits | rows, count << keys.row_bits)
    place = np.empty(rows.size, np.int64)
    place[order] = np.arange(rows.size)
    edges = np.searchsorted(whose[order], np.arange(1, count))
    return Wanted(tuple(np.split(rows[order], edges)), place, same)


def _order(numbers: np.ndarray, end: int) -> np.ndarray:
    """Return the order of different numbers less than `end`.

    Where a number and its place fit into one word, sorting these takes a quarter of an argsort.

    Examples
    --------
    >>> _order(np.array([7, 2, 5]), 8).tolist(), _order(np.array([7, 2, 5]), 1 << 63).tolist()
    ([1, 2, 0], [1, 2, 0])
    """
    bits = max(1, numbers.size - 1).bit_length()
    if (end - 1).bit_length() + bits > 63:
        return np.argsort(numbers)
    both = numbers << bits | np.arange(numbers.size)
    both.sort()
    return both & ((1 << bits) - 1)


def rows_of(found: Wanted, holder: int) -> np.ndarray:
    """Task: the rows wanted of one holder."""
    return found.rows[holder]


def arrangement(found: Wanted) -> tuple[np.ndarray, np.ndarray | None]:
    """Task: how the rows of all holders are put in order."""
    return found.place, found.same


def cut(
    rows: np.ndarray, keys: Keys, partitions: Sequence[int], *frames: pd.DataFrame
) -> pd.DataFrame:
    """Task: rows of the partitions that a worker holds, in ascending order."""
    pieces = []
    for partition, frame in zip(partitions, frames, strict=True):
        begin = keys.starts[partition]
        low, high = np.searchsorted(rows, [begin, begin + len(frame)])
        if low < high:
            pieces.append(with_categories(frame.take(rows[low:high] - begin), keys))
    return together(pieces, with_categories(frames[0].iloc[:0], keys))


def together(pieces: Sequence[pd.DataFrame], empty: pd.DataFrame) -> pd.DataFrame:
    """Return frames one below the other; those without rows have no say in dtypes."""
    some = [piece for piece in pieces if len(piece)]
    if len(some) < 2:
        return some[0] if some else empty
    return pd.concat(some)


def assemble(
    keys: Keys, how: tuple[np.ndarray, np.ndarray | None], *pieces: pd.DataFrame
) -> pd.DataFrame:
    """Task: one partition of the result."""
    place, same = how
    frame = together(pieces, pieces[0])
    if same is not None and same.any():
        place = place[_untied(frame, place, same, keys.order)]
    return frame.take(place)


def _untied(frame: pd.DataFrame, place: np.ndarray, same: np.ndarray, order: Order) -> np.ndarray:
    """Return the order of rows where those of one prefix are sorted by their whole keys."""
    tied = same.copy()
    tied[:-1] |= same[1:]
    at = np.flatnonzero(tied)
    some = frame.take(place[at])
    values = {0: np.cumsum(~same)[at]}
    for n, (_, column) in enumerate(order.columns(some), 1):
        values[n] = column.array
    found = pd.DataFrame(values).sort_values(
        [*values],
        ascending=[True, *order.ascending],
        na_position=order.na_position,
        kind="stable",
    )
    made = np.arange(place.size)
    made[at] = at[found.index.to_numpy()]
    return made


def bounds(frame: pd.DataFrame) -> tuple[Any, Any] | None:
    """Task: the first and the last label of the index."""
    return (frame.index[0], frame.index[-1]) if len(frame) else None
