"""Keys of rows sort as `pandas.DataFrame.sort_values` does, whatever the columns hold."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fpmdask.apps.frames.tasks import encode
from fpmdask.apps.frames.tasks.encode import fields, scheme, seen
from fpmdask.errors import PartitionError
from fpmdask.sorting.words import MOST_WORDS, packed, prefixes, row_numbers, words_needed
from fpmdask.tuning import DEFAULT

NAN = float("nan")
TEXT = st.text(st.sampled_from("a\0bé\U0001f600"), max_size=20)
WHOLE = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(-3, 3)
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, NAN, 5e-324, -5e-324])
INSTANTS = st.integers(-(2**62), 2**62)
# dtype -> values without nulls
COLUMNS = {
    "int64": WHOLE | SMALL,
    "int8": SMALL,
    "uint64": st.integers(0, 2**64 - 1),
    "float64": FLOATS | SMALL.map(float),
    "float32": st.floats(width=32),
    "bool": st.booleans(),
    "datetime64[ns]": INSTANTS,
    "timedelta64[us]": INSTANTS,
    "category": TEXT,
}
# these with None
NULLABLE = {
    "Int64": WHOLE | SMALL,
    "UInt8": st.integers(0, 255),
    "Float64": st.floats(allow_nan=False),
    "boolean": st.booleans(),
    "category": TEXT,
    "str": TEXT,
    "string[python]": TEXT,
    "string[pyarrow]": TEXT,
    "object": TEXT,
    "bytes": st.binary(max_size=20),
    "int64[pyarrow]": WHOLE,
    "double[pyarrow]": st.floats(allow_nan=False),
    "bool[pyarrow]": st.booleans(),
    "string[pyarrow] of arrow": TEXT,
    "binary[pyarrow]": st.binary(max_size=9),
    "timestamp[us, tz=Europe/Berlin][pyarrow]": st.datetimes(
        datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1)
    ),
    "date32[day][pyarrow]": st.dates(),
    "duration[ms][pyarrow]": st.timedeltas(datetime.timedelta(-99), datetime.timedelta(99)).map(
        lambda d: datetime.timedelta(milliseconds=d // datetime.timedelta(milliseconds=1))
    ),
    "period[D]": st.dates(datetime.date(1900, 1, 1), datetime.date(2200, 1, 1)),
    "datetime64[us, Europe/Berlin]": st.datetimes(
        datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1)
    ),
}


def column(dtype, values):
    if dtype == "bytes":
        return pd.Series(values, dtype=object)
    if dtype == "string[pyarrow] of arrow":
        return pd.Series(values, dtype=pd.ArrowDtype(pa.string()))
    if dtype.endswith("Europe/Berlin]"):
        return pd.Series(pd.to_datetime(values, utc=True)).astype(dtype)
    if dtype.endswith("[pyarrow]") and dtype.startswith("timestamp"):
        kind = pa.timestamp("us", "Europe/Berlin")
        return pd.Series(values, dtype=pd.ArrowDtype(kind))
    if dtype.startswith(("datetime64", "timedelta64")):
        return pd.Series(np.array(values, "i8").view(dtype))
    return pd.Series(values, dtype=dtype)


@st.composite
def frames(draw):
    rows = draw(st.integers(1, 12))
    kinds = [(kind, False) for kind in COLUMNS] + [(kind, True) for kind in NULLABLE]
    made = {}
    for n in range(draw(st.integers(1, 3))):
        kind, null = draw(st.sampled_from(kinds))
        values = NULLABLE[kind] | st.none() if null else COLUMNS[kind]
        made[n] = column(kind, draw(st.lists(values, min_size=rows, max_size=rows)))
    # by several columns pandas 3.1 sorts NaN as an infinity, in whichever direction
    floats = [values for values in made.values() if values.dtype in ("f4", "f8")]
    assume(
        len(made) == 1
        or not any(np.isinf(values).any() and values.isna().any() for values in floats)
    )
    return pd.DataFrame(made)


def keys_of(frame, ascending, na_position, words=None, most_distinct=DEFAULT.sort.most_distinct):
    """Return what three partitions of a frame would have as keys, and whether they are whole."""
    cuts = np.array_split(np.arange(len(frame)), 3)
    parts = [frame.iloc[own] for own in cuts]
    how = []
    for name, up in zip(frame.columns, ascending, strict=True):
        found = [seen(part[name], name, most_distinct) for part in parts]
        options = {"descending": not up, "nulls_first": na_position == "first"}
        options["most_distinct"] = most_distinct
        how.append(scheme(found, name, **options))
    row_bits = max(1, (len(frame) - 1).bit_length())
    exact = -(-(sum(field.bits for field in how) + row_bits) // 64)
    words = words or exact
    made = [
        packed(
            (
                bits
                for name, one in zip(frame.columns, how, strict=True)
                for bits in fields(part[name], name, one)
            ),
            own,
            words,
            row_bits,
        )
        for part, own in zip(parts, cuts, strict=True)
    ]
    return np.concatenate(made), row_bits, words >= exact


def sorted_by_pandas(frame, **options):
    """Return the index in order; by several columns pandas 3.1 refuses zeros of both signs."""
    plain = frame.copy()
    for name, values in frame.items():
        if pd.api.types.is_float_dtype(values.dtype):
            plain[name] = values + 0.0
    return plain.sort_values([*frame.columns], kind="stable", **options).index


@pytest.mark.parametrize("numbered", [True, False])
@given(frames(), st.data())
def test_keys_sort_as_pandas_does(numbered, frame, data):
    ascending = [data.draw(st.booleans()) for _ in frame.columns]
    na_position = data.draw(st.sampled_from(["first", "last"]))
    most = DEFAULT.sort.most_distinct if numbered else 0
    keys, row_bits, whole = keys_of(frame, ascending, na_position, most_distinct=most)
    assert whole
    found = row_numbers(np.sort(keys), row_bits)
    expected = sorted_by_pandas(frame, ascending=ascending, na_position=na_position)
    assert found.tolist() == expected.tolist()


@given(frames(), st.data())
def test_what_is_cut_off_leaves_prefixes_in_order(frame, data):
    ascending = [data.draw(st.booleans()) for _ in frame.columns]
    keys, row_bits, _ = keys_of(frame, ascending, "last", words=1)
    expected = sorted_by_pandas(frame, ascending=ascending)
    in_order = prefixes(keys[expected.to_numpy()], row_bits)[:, 0]
    assert (in_order[1:] >= in_order[:-1]).all()


@pytest.mark.parametrize("kind", [*COLUMNS, *NULLABLE])
def test_columns_of_nulls_only_or_of_nothing(kind):
    if kind in NULLABLE:
        frame = pd.DataFrame({"a": column(kind, [None, None]), "b": [2, 1]})
        keys, row_bits, _ = keys_of(frame, [True, True], "last")
        assert row_numbers(np.sort(keys), row_bits).tolist() == [1, 0]
    assert seen(column(kind, []), "a").kind == encode.NOTHING


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (pd.Series([1, "a"], dtype=object), "'x' has dtype object and holds builtins.int"),
        (pd.Series([b"a", "a"], dtype=object), "builtins.bytes, builtins.str"),
        (pd.Series([1j]), "'x' has dtype complex128"),
        (pd.Series(pd.arrays.IntervalArray.from_breaks([0, 1])), "'x' has dtype interval"),
        (pd.Series([[1]], dtype=pd.ArrowDtype(pa.list_(pa.int64()))), "'x' has dtype list"),
    ],
)
def test_values_without_an_order_are_refused(values, says):
    with pytest.raises(PartitionError, match=says):
        seen(values, "x")


def test_partitions_of_two_kinds_are_refused():
    found = [seen(pd.Series([value], dtype=object), "x") for value in ("a", b"a")]
    with pytest.raises(PartitionError, match="'x' holds bytes and text in different partitions"):
        scheme(found, "x", descending=False, nulls_first=False)


def test_lone_surrogates_are_text():
    frame = pd.DataFrame({"a": pd.Series(["\ud800", "z", "\U0001f600", "\uffff"], dtype=object)})
    keys, row_bits, _ = keys_of(frame, [True], "last")
    assert row_numbers(np.sort(keys), row_bits).tolist() == [1, 0, 3, 2]


def test_few_strings_and_small_ranges_need_few_bits():
    def bits(values):
        found = [seen(pd.Series(values), "x")]
        return scheme(found, "x", descending=False, nulls_first=False).bits

    assert bits(["x" * 100 + str(n % 8) for n in range(9999)]) == 3
    assert bits(10**15 + np.arange(100)) == 7
    assert bits([7, 7]) == 0
    many = [f"https://example.org/{n:05}" for n in range(9999)]
    assert bits(many) == 8 * 4 + 3  # all begin with 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.random.default_rng(0).random(1000), 1),  # some bits tell all apart
        (np.random.default_rng(0).random(1000).round(2), 2),  # equal ones need all bits
        (np.arange(1000) + np.array([0, 2**62] * 500), 2),  # what differs is at the end
    ],
)
def test_words_are_few_where_few_rows_agree_in_them(values, words):
    column = pd.Series(values)
    how = scheme([seen(column, "x")], "x", descending=False, nulls_first=False)
    none = np.zeros(len(column), np.int64)
    sample = packed(fields(column, "x", how), none, MOST_WORDS, 0)
    assert words_needed(sample, how.bits, 10, len(column)) == words


def test_strings_of_small_partitions_are_told_only_where_few_are_different():
    few = pa.array([b"a", b"b"] * 2000)
    unique = pa.array([b"%d" % n for n in range(4000)])
    most = DEFAULT.sort.most_distinct, DEFAULT.sort.most_distinct_nbytes
    assert encode._distinct(few, *most) == {b"a", b"b"}
    assert encode._distinct(unique[:100], *most) == set(unique[:100].to_pylist())
    assert encode._distinct(unique, *most) is None
