"""Rows of a frame as keys whose order is that of `pandas.DataFrame.sort_values`.

A key is a row of bits, most significant first::

    | null? value of the first column | null? value of the second | … | row number |

in one unsigned integer of 64 bits where that suffices (NumPy sorts these fastest), otherwise in a
big-endian byte string of several such words. The row number makes the order stable, and is how the
row of a sorted key is found again. Values are relative to the least one of their column, so that
small ranges take few bits; few distinct strings are numbered; of others the common beginning is
left out. What does not fit is cut off: rows of one prefix are put in order where they end up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fpmdask.errors import PartitionError
from fpmdask.packing import ordered_words
from fpmdask.tuning import DEFAULT

# Of a partition in which most strings are others, no more are told.
FEW_DISTINCT = 1024

NUMBER, TEXT, BYTES, NOTHING = "number", "text", "bytes", "nothing"


@dataclass(frozen=True)
class Seen:
    """What the rows of one partition have in one column.

    `low` and `high` are ordinals of numbers, bytes of strings; `longest` is in bytes; `distinct`
    are all strings where they are few.
    """

    kind: str
    nulls: int
    low: Any = None
    high: Any = None
    longest: int = 0
    distinct: frozenset[bytes] | None = None


@dataclass(frozen=True)
class Field:
    """How the values of one column become bits: relative to `low`, or numbered, or cut."""

    kind: str
    descending: bool
    nulls: bool
    nulls_first: bool
    low: int = 0
    high: int = 0
    common: int = 0
    width: int = 0
    distinct: tuple[bytes, ...] | None = field(default=None, repr=False)

    @property
    def bits(self) -> int:
        """Bits of a value that is not cut off."""
        value = 0 if self.kind == NOTHING else self.nulls + (self.high - self.low).bit_length()
        return value + 8 * self.width + (self.width.bit_length())


def seen(
    column: pd.Series,
    name: Any,
    most_distinct: int = DEFAULT.sort.most_distinct,
    most_distinct_nbytes: int = DEFAULT.sort.most_distinct_nbytes,
) -> Seen:
    """Return what the scheme of keys needs to know of one partition's column.

    So many different strings, of so many bytes, are few.

    Raises
    ------
    PartitionError
        For values that have no order here. O(rows).
    """
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "buif" and len(column):
        return _seen_plain(column.to_numpy(), name)
    kind, values, null = _values(column, name)
    nulls = int(np.count_nonzero(null))
    if nulls == len(column):
        return Seen(NOTHING, nulls)
    if kind == NUMBER:
        there = values[~null] if nulls else values
        return Seen(kind, nulls, int(there.min()), int(there.max()))
    there = values.filter(pa.array(~null)) if nulls else values
    ends = pc.min_max(there)
    longest = pc.max(pc.binary_length(there)).as_py()
    few = _distinct(there, most_distinct, most_distinct_nbytes)
    return Seen(kind, nulls, ends["min"].as_py(), ends["max"].as_py(), longest, few)


def _seen_plain(values: np.ndarray, name: Any) -> Seen:
    nulls, ends = 0, np.array([values.min(), values.max()])
    if values.dtype.kind == "f" and np.isnan(ends[0]):  # it is both where there is one
        nulls = int(np.count_nonzero(np.isnan(values)))
        if nulls == values.size:
            return Seen(NOTHING, nulls)
        ends = np.array([np.fmin.reduce(values), np.fmax.reduce(values)])
    kind, (low, high) = _plain(ends, name, np.zeros(2, bool))
    return Seen(kind, nulls, int(low), int(high))


def _distinct(values: Any, most: int, most_nbytes: int) -> frozenset[bytes] | None:
    if len(pc.unique(values[:most])) > most // 2 and len(values) > most:
        return None
    found = pc.unique(values)
    if len(found) > most or found.nbytes > most_nbytes:
        return None
    if len(found) > max(FEW_DISTINCT, len(values) // 2):
        return None  # of many such partitions all strings would pass through the client
    return frozenset(found.to_pylist())


def scheme(
    seen: Sequence[Seen],
    name: Any,
    *,
    descending: bool,
    nulls_first: bool,
    most_distinct: int = DEFAULT.sort.most_distinct,
) -> Field:
    """Return how a column becomes bits, from what all partitions have in it.

    Raises
    ------
    PartitionError
        Where some partitions have strings and others bytes or numbers.
    """
    some = [part for part in seen if part.kind != NOTHING]
    nulls = any(part.nulls for part in seen)
    kinds = {part.kind for part in some}
    if len(kinds) > 1:
        raise PartitionError(
            f"{name!r} holds {' and '.join(sorted(kinds))} in different partitions, which have no "
            "common order; give it one dtype with astype"
        )
    if not some:
        return Field(NOTHING, descending, nulls, nulls_first)
    kind = kinds.pop()
    low, high = min(part.low for part in some), max(part.high for part in some)
    if kind == NUMBER:
        return Field(kind, descending, nulls, nulls_first, low, high)
    if all(part.distinct is not None for part in some):
        merged = sorted(frozenset[bytes]().union(*(part.distinct or () for part in some)))
        if len(merged) <= most_distinct:
            last = len(merged) - 1
            return Field(kind, descending, nulls, nulls_first, 0, last, distinct=tuple(merged))
    # what is between two strings in order begins as both do
    common = next((n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    width = max(part.longest for part in some) - common
    return Field(kind, descending, nulls, nulls_first, common=common, width=width)


def fields(column: pd.Series, name: Any, how: Field) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the bits of a column, most significant first: uint64 values and how many bits of them.

    Made when they are asked for: of a long string no more than is used.
    """
    if how.kind == NOTHING:
        return
    _, values, null = _values(column, name)
    if how.nulls:
        yield (~null if how.nulls_first else null).astype(np.uint64), 1
    if how.distinct is not None:
        known = pa.array(how.distinct, pa.large_binary())
        values = pc.index_in(values, value_set=known).fill_null(0).to_numpy(zero_copy_only=False)
        values = values.astype(np.uint64)
    if how.kind == NUMBER or how.distinct is not None:
        low, high = np.uint64(how.low), np.uint64(how.high)
        values = high - values if how.descending else values - low
        values[null] = 0
        yield values, (how.high - how.low).bit_length()
        return
    for words, bits in _words(values, how):
        if how.descending:
            words ^= np.uint64((1 << bits) - 1)
        words[null] = 0
        yield words, bits


def _words(values: Any, how: Field) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the bytes of strings after what they have in common, eight at a time; their lengths.

    Shorter ones are filled with zeros; by their lengths they differ from those that have zeros.
    """
    _, ends, data = values.buffers()
    edges = np.frombuffer(ends, np.int64)[values.offset : values.offset + len(values) + 1]
    # a slice has the bytes of all that it was cut from
    first, size = int(edges[0]), int(edges[-1] - edges[0])
    text = np.zeros(size + 8 + how.common, np.uint8)
    if size:
        text[:size] = np.frombuffer(data, np.uint8, size, first)
    # a word at every byte: the strings begin anywhere
    windows: np.ndarray = np.ndarray(text.size - 7, ">u8", text, strides=(1,))
    # nulls have no bytes; what they become here is overwritten
    lengths = np.maximum(np.diff(edges) - how.common, 0)
    begin = edges[:-1] - first + how.common
    for at in range(0, how.width, 8):
        count = min(8, how.width - at)
        left = np.clip(lengths - at, 0, count)
        words = windows[np.where(left > 0, begin + at, 0)].astype(np.uint64)
        gone = (8 * (8 - left)).astype(np.uint64)
        words = np.where(left > 0, words >> gone % np.uint64(64) << gone % np.uint64(64), 0)
        yield words >> np.uint64(8 * (8 - count)), 8 * count
    yield lengths.astype(np.uint64), how.width.bit_length()


# ---- values


def _values(column: pd.Series, name: Any) -> tuple[str, Any, np.ndarray]:
    """Return the kind, the ordinals (uint64) or strings (a large_binary array), and who is null.

    -0.0 is 0.0; where a null is, anything may be.
    """
    dtype = column.dtype
    null = column.isna().to_numpy(dtype=bool)
    if isinstance(dtype, pd.CategoricalDtype):
        return NUMBER, _words_of(column.cat.codes.to_numpy()), null
    if isinstance(dtype, pd.StringDtype):
        return TEXT, _binary(column.array.__arrow_array__()), null
    if isinstance(dtype, pd.ArrowDtype):
        return _arrow(column, name, null)
    if isinstance(dtype, pd.DatetimeTZDtype | pd.PeriodDtype) or dtype.kind in "mM":
        return NUMBER, _words_of(column.array.asi8), null
    if isinstance(dtype, np.dtype):
        return (*_plain(column.to_numpy(), name, null), null)
    # nullable numbers and booleans; others have no NumPy dtype
    inside = getattr(dtype, "numpy_dtype", None)
    if inside is None or inside.kind not in "biuf":
        raise _unsortable(name, dtype)
    return (*_plain(column.to_numpy(inside, na_value=inside.type(0)), name, null), null)


def _plain(values: np.ndarray, name: Any, null: np.ndarray) -> tuple[str, Any]:
    kind = values.dtype.kind
    if kind == "O":
        return _objects(values, name, null)
    if kind == "f" and values.dtype.itemsize <= 8:
        return NUMBER, _words_of(values.astype(np.float64))  # the same in all partitions
    if kind in "bui":
        return NUMBER, _words_of(values)
    raise _unsortable(name, values.dtype)


def _unsortable(name: Any, dtype: Any) -> PartitionError:
    return PartitionError(
        f"{name!r} has dtype {dtype}; numbers, booleans, dates, durations, categories, strings and "
        "bytes are sorted (astype makes such)"
    )


def _words_of(values: np.ndarray) -> np.ndarray:
    words = ordered_words(values)
    assert words is not None  # of booleans, integers and floats of 64 bits
    return words


def _objects(values: np.ndarray, name: Any, null: np.ndarray) -> tuple[str, Any]:
    there = values[~null]
    found = set(map(type, there))
    if all(issubclass(kind, str) for kind in found):
        kind, made = TEXT, [text.encode("utf-8", "surrogatepass") for text in there]
    elif all(issubclass(kind, bytes) for kind in found):
        kind, made = BYTES, list(there)
    else:
        names = ", ".join(sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in found))
        raise PartitionError(
            f"{name!r} has dtype object and holds {names}; of objects only strings, or only bytes, "
            "are sorted (astype gives others a dtype of their own)"
        )
    filled: np.ndarray = np.full(values.size, None, object)
    filled[~null] = made
    return kind, pa.array(filled, pa.large_binary())


def _arrow(column: pd.Series, name: Any, null: np.ndarray) -> tuple[str, Any, np.ndarray]:
    values = column.array.__arrow_array__()
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return TEXT, _binary(values), null
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return BYTES, _binary(values), null
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        inside = np.dtype(kind.to_pandas_dtype())
        plain = column.to_numpy(inside, na_value=inside.type(0))
        return (*_plain(plain, name, null), null)
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        short = pa.types.is_date32(kind) or pa.types.is_time32(kind)
        whole = values.cast(pa.int32() if short else pa.int64())
        return NUMBER, _words_of(_one(whole).fill_null(0).to_numpy(zero_copy_only=False)), null
    raise _unsortable(name, column.dtype)


def _binary(values: Any) -> Any:
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.large_string())
    return _one(values.cast(pa.large_binary()))


def _one(values: Any) -> Any:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
