"""By what a frame is sorted: what the caller says, checked against the frame."""

from __future__ import annotations

from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd

from fpmdask.apps.frames.tasks import rows
from fpmdask.apps.frames.tasks.rows import Order
from fpmdask.errors import PartitionError
from fpmdask.runtime.client.conversions import frame_advice
from fpmdask.runtime.dask_private import meta_of


def check(ddf: Any, by: Any, ascending: Any, na_position: Any) -> Order:
    """Return by what a frame is to be sorted.

    Raises
    ------
    PartitionError
        For anything but a pandas DataFrame, or a dask one of pandas ones, labels that are not
        there, not unique or not of a dtype that can be sorted, directions that do not fit them.
    """
    if not isinstance(ddf, dd.DataFrame | pd.DataFrame):
        raise PartitionError(
            f"found a {type(ddf).__name__}, which is no frame; {frame_advice(ddf)}"
        )
    meta = ddf.iloc[:0] if isinstance(ddf, pd.DataFrame) else meta_of(ddf)
    if not isinstance(meta, pd.DataFrame):
        raise PartitionError(
            f"found partitions of {type(meta).__module__}.{type(meta).__qualname__}; pandas ones "
            "are sorted (to_backend makes such)"
        )
    if meta.index.nlevels > 1:
        raise PartitionError(
            f"found an index of {meta.index.nlevels} levels, 1 is needed; reset_index makes columns"
        )
    labels = list(by) if isinstance(by, list) else [by]
    if not labels:
        raise PartitionError("by = []; name at least one column")
    level = tuple(_is_level(meta, label) for label in labels)
    for n, label in enumerate(labels):
        if label in labels[:n]:
            raise PartitionError(f"by names {label!r} twice; once is enough")
    directions = _directions(ascending, len(labels))
    if not isinstance(na_position, str) or na_position not in ("first", "last"):
        raise PartitionError(f"na_position = {na_position!r}; give 'first' or 'last'")
    dtypes = tuple(
        meta.index.dtype if inside else meta[label].dtype
        for label, inside in zip(labels, level, strict=True)
    )
    order = Order(tuple(labels), level, directions, na_position, dtypes)
    rows.look_at(meta.iloc[:0], order)  # says which dtypes cannot be sorted
    return order


def _is_level(meta: pd.DataFrame, label: Any) -> bool:
    """Tell whether a label is the name of the index, not of a column."""
    known = [column for column in meta.columns if _equal(column, label)]
    named = meta.index.nlevels == 1 and label is not None and _equal(meta.index.name, label)
    if len(known) > 1 or (known and named):
        where = f"{len(known)} columns" if len(known) > 1 else "a column and the index"
        raise PartitionError(f"{label!r} is the name of {where}; rename all but one")
    if not known and not named:
        shown = ", ".join(map(repr, meta.columns[:20])) + ", …" * (len(meta.columns) > 20)
        index = "" if meta.index.name is None else f", and the index {meta.index.name!r}"
        raise PartitionError(f"by names {label!r}, which is no column; there are {shown}{index}")
    return bool(named)


def _equal(a: Any, b: Any) -> bool:
    return type(a == b) in (bool, np.bool_) and bool(a == b)


def _directions(ascending: Any, count: int) -> tuple[bool, ...]:
    several = isinstance(ascending, list | tuple | np.ndarray)
    given = list(ascending) if several else [ascending] * count
    for one in given:
        if not isinstance(one, bool | np.bool_):
            raise PartitionError(f"ascending = {ascending!r}; give True or False, or one per key")
    if len(given) != count:
        raise PartitionError(
            f"ascending has {len(given)} entries for {count} keys; give one for all, or one each"
        )
    return tuple(map(bool, given))
