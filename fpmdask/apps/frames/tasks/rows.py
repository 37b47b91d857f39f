"""What workers do with the rows of a frame that is sorted: keys first, rows once they are known."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import pandas as pd
from dask.base import tokenize
from dask.sizeof import sizeof

from fpmdask.apps.frames.tasks.encode import NUMBER, Field, Seen, fields, seen
from fpmdask.errors import PartitionError
from fpmdask.sorting.payload import ITEMSIZES, columns_of, in_order, sections, tied
from fpmdask.sorting.words import MOST_WORDS, packed, prefixes, row_numbers, same_prefixes

# Rows that become keys at once: what is made of so few on the way stays in the processor's cache,
# and below the size from which malloc maps fresh memory every time.
BLOCK = 16_000
# Where NumPy alone works on them.
SMALL_BLOCK = 4_000
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
    def null(self) -> tuple[int, int] | None:
        """Where rows of one prefix are equal: where the last column is null.

        The number of its bit in the first word, and what that is for nulls; None where no bit
        there tells.
        """
        bit = 63 - sum(how.bits for how in self.how[:-1])
        last = self.how[-1]
        return (bit, int(not last.nulls_first)) if last.nulls and bit >= self.row_bits else None

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
            made = column.astype(dtype)
            if made.astype(found).equals(column) and _same_signs(column, made):
                return made
        except (TypeError, ValueError):
            pass
    raise PartitionError(
        f"{name!r} has dtype {found} in a partition, its dask frame says {dtype}, which does not "
        "hold all of its values; give it one with astype, or the right meta where it is made"
    )


def _same_signs(column: pd.Series, made: pd.Series) -> bool:
    """Tell whether integers are still what they were: what overflows comes back whole."""
    if {column.dtype.kind, made.dtype.kind} != {"i", "u"}:
        return True
    return bool((column >= 0).all() and (made >= 0).all())


def _is_text(dtype: Any) -> bool:
    if isinstance(dtype, pd.ArrowDtype):
        return dtype.type in (str, bytes)
    return isinstance(dtype, pd.StringDtype) or dtype == np.dtype(object)


# ---- before the sort


@dataclass(frozen=True)
class Look:
    """What one partition says of itself: rows, keys, and column -> what its categories are.

    `form` stands for its columns, where these can travel with keys; it is empty where they cannot.
    """

    rows: int
    seen: tuple[Seen, ...]
    categories: dict[Any, str]
    form: str


def look(
    few: tuple[int, int], order: Order, partitions: Sequence[int], *frames: pd.DataFrame
) -> list[Look]:
    """Task: look at the keys of partitions; `few` are the most different strings, and bytes."""
    return [look_at(frame, order, *few) for frame in frames]


def look_at(frame: pd.DataFrame, order: Order, *few: int) -> Look:
    """Look at the keys of one partition; `few` as for `look`."""
    found = []
    for name, column in order.columns(frame):
        if isinstance(column.dtype, pd.CategoricalDtype):
            last = max(0, len(column.cat.categories) - 1)
            found.append(Seen(NUMBER, int(column.isna().sum()), 0, last))
        else:
            found.append(seen(column, name, *few))
    tokens = {name: str(tokenize(dtype)) for name, dtype in categories(frame).items()}
    return Look(len(frame), tuple(found), tokens, _form(frame))


def _form(frame: pd.DataFrame) -> str:
    dtypes = [frame.index.dtype, *frame.dtypes]
    if not is_plain([frame]) or any(dtype.itemsize not in ITEMSIZES for dtype in dtypes):
        return ""
    return str(tokenize(frame.columns, [*map(str, dtypes)], frame.index.name))


def categories(frame: pd.DataFrame) -> dict[Any, pd.CategoricalDtype]:
    """Return column -> dtype of those that are categories."""
    columns = [*zip(frame.columns, frame.dtypes, strict=True), (INDEX, frame.index.dtype)]
    return {name: dtype for name, dtype in columns if isinstance(dtype, pd.CategoricalDtype)}


def encode(keys: Keys, partitions: Sequence[int], *frames: pd.DataFrame) -> np.ndarray:
    """Task: the keys of partitions' rows."""
    made = np.empty(sum(map(len, frames)), keys.dtype)
    Encoder(keys, partitions, frames).fill(0, made)
    return made


class Encoder:
    """Makes keys of the rows of partitions.

    Parameters
    ----------
    keys : Keys
    partitions : sequence of int
        Their numbers.
    frames : sequence of DataFrame
    """

    def __init__(
        self, keys: Keys, partitions: Sequence[int], frames: Sequence[pd.DataFrame]
    ) -> None:
        self.keys = keys
        self._columns = [_columns(frame, keys) for frame in frames]
        self._ends = [*accumulate(map(len, frames))]
        self._first = [
            (partition << keys.local_bits) - end + len(frame)
            for partition, end, frame in zip(partitions, self._ends, frames, strict=True)
        ]

    def fill(self, low: int, made: np.ndarray) -> None:
        """Make as many keys as there is memory for, of the rows from one on, counted over all."""
        begin, stop = low, low + made.size
        while begin < stop:
            n = bisect_right(self._ends, begin)
            end = min(begin + BLOCK, self._ends[n], stop)
            start = self._ends[n - 1] if n else 0
            here = slice(begin - start, end - start)
            numbers = np.arange(begin + self._first[n], end + self._first[n])
            columns = [(name, column.iloc[here]) for name, column in self._columns[n]]
            made[begin - low : end - low] = packed(
                _bits(columns, self.keys), numbers, self.keys.words, self.keys.row_bits
            )
            begin = end


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
        For each holder of partitions, which of their rows are wanted: of one partition after the
        other, in their order in the part.
    counts
        For each holder, how many these are of each of its partitions.
    place
        For each of all these rows, its place in the part.
    same
        Whether a row has the prefix of the one before it; None where that does not matter.
    """

    rows: tuple[np.ndarray, ...]
    counts: tuple[np.ndarray, ...]
    place: np.ndarray
    same: np.ndarray | None


@dataclass(frozen=True)
class Holders:
    """Where the partitions are.

    Parameters
    ----------
    rank
        The place of each partition where those of one holder follow each other, in as few bytes as
        these numbers need.
    ends
        The ranks at which the partitions of the second holder begin, of the third, ….
    """

    rank: np.ndarray
    ends: np.ndarray


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
    local = (1 << keys.local_bits) - 1
    rows = np.empty(part.size, np.min_scalar_type(local))
    whose = np.empty(part.size, holders.rank.dtype)
    counts = np.zeros(holders.rank.size, np.int64)
    same = None if keys.whole else np.empty(part.size, bool)
    for low in range(0, part.size, SMALL_BLOCK):
        here = slice(low, low + SMALL_BLOCK)
        numbers = row_numbers(part[here], keys.row_bits)
        whose[here] = holders.rank[numbers >> keys.local_bits]
        rows[here] = numbers & local
        counts += np.bincount(whose[here], minlength=counts.size)
        if same is not None:
            before = min(1, low)
            same[here] = same_prefixes(part[low - before : here.stop], keys.row_bits)[before:]
    place = np.argsort(whose, kind="stable")  # by counting: `whose` has one or two bytes
    each = np.split(counts, holders.ends)
    edges = np.cumsum([some.sum() for some in each])[:-1]
    return Wanted(tuple(np.split(rows[place], edges)), tuple(each), place, same)


def rows_of(found: Wanted, holder: int) -> tuple[np.ndarray, np.ndarray]:
    """Task: the rows wanted of one holder, and how many of each of its partitions."""
    return found.rows[holder], found.counts[holder]


def cut(keys: Keys, asked: tuple[np.ndarray, np.ndarray], *frames: pd.DataFrame) -> pd.DataFrame:
    """Task: the rows of a holder's partitions that a part of the result wants."""
    rows, counts = asked
    some = [
        (frame, own.astype(np.intp))
        for frame, own in zip(frames, np.split(rows, np.cumsum(counts)[:-1]), strict=True)
        if own.size
    ]
    if not some or not is_plain([frame for frame, _ in some]):
        taken = [frame.take(own) for frame, own in some] or [frames[0].iloc[:0]]
        return together([with_categories(frame, keys) for frame in taken])
    ends = np.cumsum([own.size for _, own in some])

    def filled(columns: Sequence[np.ndarray], made: np.ndarray) -> None:
        for column, (_, own), end in zip(columns, some, ends, strict=True):
            # the rows are there; to raise if they were not would take a buffer
            np.take(column, own, out=made[end - own.size : end], mode="clip")

    return _by_columns([frame for frame, _ in some], rows.size, filled)


def is_plain(frames: Sequence[pd.DataFrame]) -> bool:
    """Tell whether frames have the same columns, in one order, of NumPy's dtypes but no objects."""
    columns = frames[0].columns
    if not all(frame.columns.equals(columns) for frame in frames):
        return False  # pandas.concat puts values under their labels
    kinds = {(*frame.dtypes, frame.index.dtype) for frame in frames}
    numpys = all(isinstance(kind, np.dtype) and kind.kind != "O" for kind in chain(*kinds))
    return numpys and len(kinds) == 1 and all(type(frame) is pd.DataFrame for frame in frames)


def _by_columns(
    frames: Sequence[pd.DataFrame],
    size: int,
    fill: Callable[[Sequence[np.ndarray], np.ndarray], None],
) -> pd.DataFrame:
    """Return a frame of the columns that `fill` makes of those of plain frames."""
    like = frames[0]

    def made(columns: Sequence[Any]) -> np.ndarray:
        column = np.empty(size, columns[0].dtype)
        fill([one.to_numpy() for one in columns], column)
        return column

    columns = [made([frame.iloc[:, n] for frame in frames]) for n in range(like.shape[1])]
    return _of_columns([made([frame.index for frame in frames]), *columns], like)


def _of_columns(columns: Sequence[np.ndarray], like: pd.DataFrame) -> pd.DataFrame:
    """Return a frame of an index and columns, labelled as another one."""
    index = pd.Index(columns[0], name=like.index.name, copy=False)
    found = pd.DataFrame(dict(enumerate(columns[1:])), index, copy=False)
    return found.set_axis(like.columns, axis=1).__finalize__(like)


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
    if not is_plain(pieces):
        order = np.empty_like(place)
        order[place] = np.arange(place.size)
        return together(pieces).take(order)
    places = np.split(place, np.cumsum([len(piece) for piece in pieces])[:-1])

    def filled(columns: Sequence[np.ndarray], made: np.ndarray) -> None:
        for column, at in zip(columns, places, strict=True):
            made[at] = column

    return _by_columns(pieces, place.size, filled)


def between(low: int, high: int, frame: pd.DataFrame) -> pd.DataFrame:
    """Task: consecutive rows of a partition."""
    return frame.iloc[low:high]


def as_it_is(frame: pd.DataFrame) -> pd.DataFrame:
    """Task: what came from another worker."""
    return frame


def nbytes(*pieces: pd.DataFrame | np.ndarray) -> int:
    """Task: the bytes of what comes from other workers or goes to them."""
    return sum(map(sizeof, pieces))


def _untied(
    pieces: Sequence[pd.DataFrame], place: np.ndarray, same: np.ndarray, order: Order
) -> np.ndarray:
    """Return the places of rows where those of one prefix are sorted by their whole keys."""
    tied = _tied(same)
    where = np.flatnonzero(tied[place])
    edges = np.cumsum([0, *map(len, pieces)])
    few = [
        piece.take(where[np.searchsorted(where, low) : np.searchsorted(where, high)] - low)
        for piece, (low, high) in zip(pieces, pairwise(edges), strict=True)
    ]
    so_far = np.argsort(place[where])
    where = where[so_far]
    at = place[where]
    made = place.copy()
    made[where[_order_of_ties(together(few).take(so_far), ~same[at], order)]] = at
    return made


def _tied(same: np.ndarray) -> np.ndarray:
    """Return which rows have the prefix of the one before or after them."""
    tied = same.copy()
    tied[:-1] |= same[1:]
    return tied


def _order_of_ties(few: pd.DataFrame, first: np.ndarray, order: Order) -> np.ndarray:
    """Return the order of rows where those from one that is a `first` to the next are sorted."""
    values = {0: np.cumsum(first)}
    for n, (_, column) in enumerate(order.columns(few), 1):
        values[n] = column.array
    found = pd.DataFrame(values).sort_values(
        [*values],
        ascending=[True, *order.ascending],
        na_position=order.na_position,
        kind="stable",
    )
    made: np.ndarray = found.index.to_numpy()
    return made


# ---- rows that travelled with their keys


@dataclass(frozen=True)
class Form:
    """What a frame of bare memory looks like: the keys that brought it, and one without rows."""

    keys: Keys
    like: pd.DataFrame

    @property
    def dtypes(self) -> list[np.dtype[Any]]:
        """Those of the index and the columns."""
        return [self.like.index.dtype, *self.like.dtypes]

    def encoder(self, partitions: Sequence[int], frames: Sequence[pd.DataFrame]) -> Encoder:
        """Return what makes the keys of partitions with these numbers."""
        return Encoder(self.keys, partitions, frames)

    def columns(self, part: np.ndarray, size: int) -> list[np.ndarray]:
        """Return the index and the columns that are in a part of so many rows."""
        begins, _ = sections(self.dtypes, size)
        return [
            part[begin : begin + size * dtype.itemsize].view(dtype)
            for begin, dtype in zip(begins, self.dtypes, strict=True)
        ]

    def has_ties(self, part: np.ndarray, size: int) -> bool:
        """Tell whether rows of a part may have to change places."""
        _, end = sections(self.dtypes, size)
        return bool(part[end:].any())

    def untie(self, part: np.ndarray, size: int) -> None:
        """Put rows of one prefix in the order of their whole keys, and clear their bits."""
        if not self.has_ties(part, size):
            return
        _, end = sections(self.dtypes, size)
        same = np.unpackbits(part[end:], count=size).view(bool)
        columns = self.columns(part, size)
        at = np.flatnonzero(_tied(same))
        few = _of_columns([column[at] for column in columns], self.like)
        found = at[_order_of_ties(few, ~same[at], self.keys.order)]
        for column in columns:
            column[at] = column[found]
        part[end:] = 0


def how(form: Form, partitions: Sequence[int], *frames: pd.DataFrame) -> Form:
    """Task: how partitions' rows become keys, where these rows are, once that is wanted."""
    return form


def framed(form: Form, size: int, part: np.ndarray) -> pd.DataFrame:
    """Task: one partition of the result, of the memory of `fpmdask.sorting.payload.Part`."""
    if form.has_ties(part, size):
        part = part.copy()  # others may be reading it
        form.untie(part, size)
    return _of_columns(form.columns(part, size), form.like)


def chosen(
    form: Form, ends: tuple[bytes, bytes] | None, partitions: Sequence[int], *frames: pd.DataFrame
) -> tuple[np.ndarray, pd.DataFrame]:
    """Task: the keys from the first to the last of ``ends`` in partitions, and their rows."""
    keys = encode(form.keys, partitions, *frames)
    here = np.zeros(keys.size, bool)
    if ends is not None:
        low, high = (np.frombuffer(end, keys.dtype) for end in ends)
        here = (keys >= low) & (keys <= high)
    return keys[here], together(frames)[here]


def again(form: Form, *pieces: tuple[np.ndarray, pd.DataFrame]) -> np.ndarray:
    """Task: a part of the result as `fpmdask.sorting.payload.Part` makes it."""
    # partitions without rows may have other dtypes
    some = [piece for piece in pieces if len(piece[1])] or [(pieces[0][0], form.like)]
    keys = np.concatenate([own for own, _ in some])
    order = np.argsort(keys)
    whole = form.keys.whole
    same = np.zeros(0, bool)
    if not whole:
        same = tied(keys[order], form.keys.row_bits, form.keys.null)
    columns = columns_of([frame for _, frame in some])
    return in_order([np.concatenate(column) for column in columns], order, same)


def bounds(frame: pd.DataFrame) -> tuple[Any, Any] | None:
    """Task: the first and the last label of the index."""
    return (frame.index[0], frame.index[-1]) if len(frame) else None
