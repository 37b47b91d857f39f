"""The client's side of a product: what goes in as persisted arrays, what comes out as one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from numbers import Integral
from typing import Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph
from distributed import Client

from fpmdask.apps.matmul.client.inputs import READ, read, to_be_loaded, to_be_read
from fpmdask.apps.matmul.client.split_k import multiply as multiply_ranges
from fpmdask.apps.matmul.plan import MatmulSpec, pieces
from fpmdask.apps.matmul.spec import Chunks
from fpmdask.apps.matmul.tasks import recompute
from fpmdask.apps.matmul.tiling import INNER
from fpmdask.errors import PartitionError
from fpmdask.runtime.client import proxy
from fpmdask.runtime.client.conversions import advice
from fpmdask.runtime.client.inputs import finished
from fpmdask.runtime.client.proxy import Follow
from fpmdask.runtime.client.rows import array_in_memory
from fpmdask.runtime.dask_private import List, Task, TaskRef, meta_of
from fpmdask.runtime.report import Report
from fpmdask.tuning import Tuning


def as_matrices(a: Any, b: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    """Return A and B with vectors as one row (A) or one column (B), and the index that undoes it.

    As `numpy.matmul` has it; what is no array is left for `check` to refuse.
    """
    index: list[Any] = [slice(None), slice(None)]
    if isinstance(a, da.Array | np.ndarray) and a.ndim == 1:
        a, index[0] = a[np.newaxis, :], 0
    if isinstance(b, da.Array | np.ndarray) and b.ndim == 1:
        b, index[1] = b[:, np.newaxis], 0
    return a, b, tuple(index)


def check(a: Any, b: Any) -> MatmulSpec:
    """Return what is to be multiplied, or say why it cannot be.

    Raises
    ------
    PartitionError
        For anything but two non-empty two-dimensional numeric arrays of matching shapes and known
        chunks.
    """
    _check_operands(a, b)
    return MatmulSpec.build(
        shape=(a.shape[0], a.shape[1], b.shape[1]),
        inner=b.shape[0],
        dtypes=(a.dtype, b.dtype),
        a_chunks=_chunks(a),
        b_chunks=_chunks(b),
        a_name=getattr(a, "name", "a"),
        b_name=getattr(b, "name", "b"),
    )


def _check_operands(a: Any, b: Any) -> None:
    """Refuse what is no matrix of numbers, empty or not."""
    for name, x in (("A", a), ("B", b)):
        if not isinstance(x, da.Array | np.ndarray):
            raise PartitionError(f"{name} is a {type(x).__name__}; {advice(x)}")
        inside = type(meta_of(x)) if isinstance(x, da.Array) else type(x)
        if issubclass(inside, np.ma.MaskedArray) or not issubclass(inside, np.ndarray):
            raise PartitionError(
                f"{name} consists of {inside.__module__}.{inside.__qualname__}; only NumPy arrays "
                "without a mask are multiplied (filled or toarray makes such)"
            )
        if x.ndim != 2:
            raise PartitionError(
                f"{name} has {x.ndim} dimensions, 1 or 2 are needed; reshape it, or multiply its "
                "matrices one by one"
            )
        if any(math.isnan(size) for size in x.shape):
            raise PartitionError(
                f"{name} has chunks of unknown size; call {name}.compute_chunk_sizes() first"
            )


def empty(a: Any, b: Any) -> da.Array | None:
    """Return the product where a side is 0, as NumPy has it; None where there is work to do.

    Raises
    ------
    PartitionError
        For what `check` refuses, too.
    """
    _check_operands(a, b)
    if 0 not in (*a.shape, *b.shape) or a.shape[1] != b.shape[0]:
        return None
    one = ((1,), (1,))
    spec = MatmulSpec.build(
        shape=(1, 1, 1),
        inner=1,
        dtypes=(a.dtype, b.dtype),
        a_chunks=one,
        b_chunks=one,
        a_name="a",
        b_name="b",
    )
    zeros: da.Array = da.zeros((a.shape[0], b.shape[1]), dtype=spec.dtype)
    return zeros


def _chunks(x: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if isinstance(x, da.Array):
        rows, columns = x.chunks
        return tuple(map(int, rows)), tuple(map(int, columns))
    return (x.shape[0],), (x.shape[1],)


def check_distribution(distribution: Any, shape: Sequence[int], layout: Any) -> dict[str, int]:
    """Return rows per worker name, checked against the product's M, K and N.

    Where C has more columns than rows, they may be columns, as a report has them then.
    """
    if layout == INNER:
        raise PartitionError(
            "a distribution is of rows of C; layout 'inner' shares out K: leave one of them out"
        )
    if isinstance(distribution, Report):
        distribution = dict(zip(distribution.workers, distribution, strict=True))
    if not isinstance(distribution, Mapping):
        raise PartitionError(
            f"distribution is a {type(distribution).__name__}; give a mapping of worker name to "
            "rows, or what `partition` returned"
        )
    rows: dict[str, int] = {}
    for name, units in distribution.items():
        whole = isinstance(units, Integral | float) and not isinstance(units, bool)
        if not whole or not math.isfinite(units) or units != int(units) or units < 0:
            raise PartitionError(
                f"the distribution gives {units!r} rows to {name}; a whole number >= 0 is needed"
            )
        if str(name) in rows:
            raise PartitionError(f"the distribution names {name} twice")
        rows[str(name)] = int(units)
    height, _, width = shape
    by_columns = layout != "rows" and width > height
    if sum(rows.values()) not in ({height, width} if by_columns else {height}):
        raise PartitionError(
            f"the distribution's rows sum to {sum(rows.values())}; they must sum to {height}, the "
            "rows of A" + f", or as columns to {width}, those of B" * by_columns
        )
    return rows


def check_depth(depth: Any, columns: int) -> int | None:
    """Return the depth of the timed update of an A of so many columns, None to have it chosen."""
    if depth is None:
        return None
    whole = isinstance(depth, Integral) and not isinstance(depth, bool)
    if not whole or not 1 <= depth <= columns:
        raise PartitionError(
            f"depth = {depth!r}; give an int from 1 to {columns}, the columns of A, or None"
        )
    return int(depth)


async def multiply(
    client: Client,
    a: Any,
    b: Any,
    index: tuple[Any, ...],
    request: dict[str, Any],
    follow: Follow,
    tuning: Tuning,
) -> da.Array:
    """Return C[index] of C = A·B.

    ``follow`` runs ``request`` as the app "matmul", ``tuning`` is the client's.
    """
    _, _, c = await product(client, a, b, request, follow, tuning)
    if 0 not in index:
        return c
    vector: da.Array = client.persist(c[index])
    await finished(client, vector)
    return vector


async def product(
    client: Client,
    a: Any,
    b: Any,
    request: dict[str, Any],
    follow: Follow,
    tuning: Tuning,
) -> tuple[da.Array, da.Array, da.Array]:
    """Return A and B, which are in the workers' memory then, and C = A·B.

    Lazy inputs are read in mid-run, once it is known who needs what.
    """
    lazy = [x.name for x in (a, b) if await to_be_read(client, x)]
    before = {getattr(x, "name", n): await to_be_loaded(client, x) for n, x in enumerate((a, b))}
    loading = sum(nbytes for name, nbytes in before.items() if name not in lazy)
    await proxy.check(client, "matmul", {**request, "lazy": lazy, "loading": loading})
    workers, most = request["workers"], tuning.matmul.block_nbytes
    a, b = [
        # rows that are longer than a block are cut
        x
        if getattr(x, "name", None) in lazy
        else await array_in_memory(client, x, workers, int(x[:1].nbytes > most), most)
        for x in (a, b)
    ]
    arrays, spec = [a, b], check(a, b)
    del a, b
    asked = partial(_asked, client, arrays, workers, tuning)
    value, _ = await follow("matmul", {**request, "product": spec.to_json(), "lazy": lazy}, asked)
    if len(arrays) < 3:
        arrays.append(collect(client, arrays[0], arrays[1], value))
    return arrays[0], arrays[1], arrays[2]


async def _asked(
    client: Client,
    arrays: list[da.Array],
    workers: Sequence[str] | None,
    tuning: Tuning,
    asking: Mapping[str, Any],
) -> dict[str, Any]:
    """Do what a run wants of this client with A and B: read them in, or make C, which is added.

    No closure: a frame that an exception holds would hold its variables, also once it is cleared.
    """
    if asking["request"] == "load":
        a, b = arrays
        keys = check(a, b).keys
        homes = {keys[n]: home for home, own in asking["reads"].items() for n in own}
        arrays[:] = await read(client, arrays, homes)
        return {}
    a, b = client.persist(arrays)  # together: what both are made of is read once
    arrays[:] = a, b
    await finished(client, arrays, READ)
    c, shares = await multiply_ranges(
        client,
        a,
        b,
        check(a, b),
        asking["lines"],
        workers,
        asking["run"],
        tuning,
    )
    arrays.append(c)
    return {"shares": shares}


def collect(client: Client, a: da.Array, b: da.Array, value: Mapping[str, Any]) -> da.Array:
    """Return C over the published keys, each with a task that makes its chunk from A and B.

    The keys are in memory already, so that persisting computes nothing: it gives the client its
    futures and the scheduler the tasks for the case that a worker is lost.
    """
    spec = check(a, b)
    name, heights, widths = value["name"], tuple(value["rows"]), tuple(value["columns"])
    graph: dict[Any, Task] = {}
    rows, columns = ([0, *accumulate(sizes)] for sizes in (heights, widths))
    for i, (row0, row1) in enumerate(pairwise(rows)):
        of_a = _blocks(row0, row1, 0, spec.shape[1], spec.a_chunks)
        for j, (column0, column1) in enumerate(pairwise(columns)):
            of_b = _blocks(0, spec.shape[1], column0, column1, spec.b_chunks)
            graph[name, i, j] = Task(
                (name, i, j),
                recompute,
                spec.to_json(),
                (row0, row1, column0, column1),
                of_a,
                List(*(TaskRef((a.name, *block)) for block in of_a)),
                of_b,
                List(*(TaskRef((b.name, *block)) for block in of_b)),
            )
    inputs: Any = [a, b]
    layers = HighLevelGraph.from_collections(name, graph, dependencies=inputs)
    c = da.Array(layers, name, chunks=(heights, widths), dtype=spec.dtype)
    persisted: da.Array = client.persist(c, optimize_graph=False)
    return persisted


def _blocks(
    row0: int, row1: int, column0: int, column1: int, chunks: Chunks
) -> list[tuple[int, int]]:
    """Return the positions of the blocks that a rectangle meets."""
    return [piece.block for piece in pieces(row0, row1, column0, column1, chunks)]
