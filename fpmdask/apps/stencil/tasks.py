"""A chunk of the result, as Dask makes it again where it is lost: from all rows at the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np

from fpmdask.apps.stencil.block import Array, iterated
from fpmdask.apps.stencil.spec import StencilSpec


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
        All of these.
    """
    code, spec = facts
    rest = iter(chunks)
    arrays = [np.concatenate([next(rest) for _ in range(count)]) for count in counts]
    return iterated(StencilSpec.from_json(spec), cloudpickle.loads(code), arrays, iterations)


def cut(fields: Sequence[Array], field: int, low: int, high: int) -> Array:
    """Task: rows of a field."""
    return fields[field][low:high].copy()
