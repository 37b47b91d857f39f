"""A chunk of the result, as Dask makes it again where it is lost: from all rows at the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np

from fpmdask.apps.stencil.block import Array, iterated
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.runtime.zarr_storage import StoredRows


def again(
    facts: tuple[bytes, Mapping[str, Any]], iterations: int, counts: Sequence[int], *chunks: Array
) -> list[Array]:
    """Task: all fields after some iterations.

    Parameters
    ----------
    facts
        The pickled `Update`, and what `StencilSpec.to_json` made of the spec.
    counts
        Chunks of each field, and of each constant array.
    chunks
        All of these. What is stored in a Zarr array is read from there.
    """
    code, facts_of_spec = facts
    spec = StencilSpec.from_json(facts_of_spec)
    rest, arrays = iter(chunks), []
    for one, count in zip((*spec.fields, *spec.args), counts, strict=True):
        if one.stored is None:
            arrays.append(np.concatenate([next(rest) for _ in range(count)]))
        else:
            arrays.append(np.empty(spec.shape, one.dtype))
            StoredRows(one.stored).read(0, arrays[-1])
    return iterated(spec, cloudpickle.loads(code), arrays, iterations)


def cut(fields: Sequence[Array], field: int, low: int, high: int) -> Array:
    """Task: rows of a field."""
    return fields[field][low:high].copy()
