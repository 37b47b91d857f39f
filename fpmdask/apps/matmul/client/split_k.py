"""The client's side of products that are sums over K: tasks where the chunks are, then the sums."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, islice, pairwise
from typing import Any

import dask.array as da
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future, futures_of
from distributed.client import FutureCancelledError

from fpmdask.apps.matmul.plan import MatmulSpec
from fpmdask.apps.matmul.split_k import in_chunks, places, segments
from fpmdask.apps.matmul.tasks import Range, between, part_of, summed, told, total
from fpmdask.errors import ChunksLostError
from fpmdask.partition.even import even
from fpmdask.runtime.client.inputs import finished, taking_part
from fpmdask.runtime.client.stages import Stages, WorkerLeft, token
from fpmdask.runtime.dask_private import Alias, GraphNode, List, Task, TaskRef
from fpmdask.runtime.placement import dealt
from fpmdask.tuning import DEFAULT, Tuning

# The number of a chunk along K, and from … to in it.
InChunk = tuple[int, int, int]


async def multiply(
    client: Client,
    a: da.Array,
    b: da.Array,
    spec: MatmulSpec,
    lines: Mapping[str, int] | None,
    workers: Sequence[str] | None,
    run: str,
    tuning: Tuning = DEFAULT,
) -> tuple[da.Array, list[dict[str, Any]]]:
    """Return C = A·B, and what each worker tells of its sum.

    Parameters
    ----------
    a, b
        In the workers' memory.
    spec
        The product.
    lines
        Worker -> columns of A, and rows of B, that it multiplies; None for what it holds.
    workers
        Names or addresses of those that take part; None for all.
    run
        The run that holds the workers.
    tuning
        The client's.

    Raises
    ------
    ChunksLostError
        If a chunk of A or B is lost and cannot be made again.
    CoordinatorError
        If a worker stays paused or silent.

    Notes
    -----
    Each worker adds up the products of what it holds and is handed; of these sums one worker, or as
    many as keep that small, add up a part of C each, cut along its longer side. What is lost is
    made again as Dask makes lost results again. O(chunks + parts · workers) tasks.
    """
    stages = Stages(client, run, tuning.runtime)
    stages.stage = "multiply"
    stage = partial(_made, stages, a, b, spec, lines, workers, tuning.matmul.sum_part_nbytes)
    parts, shares, chunks = await stages.again(stage)
    name = token("inner")
    keys = [(name, i, j) for i in range(len(chunks[0])) for j in range(len(chunks[1]))]
    graph: dict[Any, GraphNode] = {
        key: Alias(key, part.key) for key, part in zip(keys, parts, strict=True)
    }
    layers: dict[str, Any] = {
        name: MaterializedLayer(graph),
        f"{name}-given": MaterializedLayer({part.key: part for part in parts}),
    }
    needs = {name: {f"{name}-given"}, f"{name}-given": set[str]()}
    lazy = da.Array(HighLevelGraph(layers, needs), name, chunks=chunks, dtype=spec.dtype)
    c: da.Array = client.persist(lazy, optimize_graph=False)
    try:
        await finished(client, c)
    except ChunksLostError:
        await _still_there(client, (a, b))
        raise
    return c, shares


async def _made(
    stages: Stages,
    a: da.Array,
    b: da.Array,
    spec: MatmulSpec,
    lines: Mapping[str, int] | None,
    workers: Sequence[str] | None,
    sum_part_nbytes: int,
) -> tuple[list[Future[Any]], list[dict[str, Any]], tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the parts of C, what the workers tell of their sums, and the chunks of C."""
    futures = {future.key: future for x in (a, b) for future in futures_of(x)}
    chunks = [futures[key] for key in spec.keys]
    where = dict(zip(spec.keys, await stages.places(chunks), strict=True))
    # on others there is no fpmdask of this version: what they hold is fetched as it lies
    there = able = stages.threads.keys() - stages.bare
    if workers is not None:
        there = able & (await taking_part(stages.client, workers)).keys()
    if not there:
        raise WorkerLeft(f"no worker of {workers or 'the cluster'} with fpmdask is connected")
    same = transposed(a, b)
    needless = {"a": spec.a_name, "b": spec.b_name}.get(same or "")
    held = places(spec, {key: [at] for key, at in where.items() if key[0] != needless})
    lengths = [high - low for low, high in segments(spec)]
    busy = _busy(lengths, held, lines, sorted(there))
    dealt_out = {
        worker: [piece for piece in own if piece.size]
        for worker, own in dealt(lengths, held, busy).items()
    }
    tasks = _Tasks(spec, {x.name: x.dtype.itemsize for x in (a, b)}, where, able, same)
    # of all pieces at once, as it goes through all chunks
    at = iter(in_chunks(spec, [*chain.from_iterable(dealt_out.values())]))
    sums = {
        worker: tasks.sum_of(worker, n, [*islice(at, len(own))])
        for n, (worker, own) in enumerate(dealt_out.items())
        if own
    }
    rows, _, columns = spec.shape
    wanted = -(-len(sums) * rows * columns * spec.sums.itemsize // sum_part_nbytes)
    # those with most to do have the largest shares of the cluster's speed
    adders = sorted(sums, key=lambda worker: -busy[worker])[: max(1, wanted)]
    axis = int(columns > rows)
    sizes = tuple(int(n) for n in even(max(rows, columns), len(adders)) if n)
    edges = pairwise(accumulate(sizes, initial=0))
    for n, (adder, (low, high)) in enumerate(zip(adders, edges, strict=False)):
        tasks.part_of(adder, n, axis, low, high, sums)
    for n, (worker, made) in enumerate(sums.items(), len(sizes)):
        facts = worker, sum(piece.size for piece in dealt_out[worker]), tasks.received[worker]
        tasks.add((tasks.name, n), worker, told, facts, made)
    try:
        found = await stages.made(tasks.name, tasks.made, tasks.pins, chunks, {})
        shares = await stages.client.gather(found[len(sizes) :])
    except (ChunksLostError, FutureCancelledError) as error:
        traceback.clear_frames(error.__traceback__)  # another one may replace it
        await _still_there(stages.client, (a, b))
        raise
    return found[: len(sizes)], shares, ((rows,), sizes) if axis else (sizes, (columns,))


def _busy(
    lengths: Sequence[int],
    held: Sequence[Sequence[str]],
    lines: Mapping[str, int] | None,
    workers: Sequence[str],
) -> dict[str, int]:
    """Return worker -> lines of K, all of them to those that take part.

    Parameters
    ----------
    lengths, held
        Lines of each segment, and who holds it.
    lines
        Worker -> lines that it is to multiply; None for what it holds.
    workers
        Those that take part.
    """
    shares = Counter(dict(lines or {}))
    if lines is None:
        for length, (worker,) in zip(lengths, held, strict=True):
            shares[worker] += length
    busy = {worker: shares[worker] for worker in workers if shares[worker]}
    if missing := sum(lengths) - sum(busy.values()):  # the shares of those that take no part
        takers = workers if lines is None or not busy else [*busy]
        for taker, more in zip(takers, even(missing, len(takers)).tolist(), strict=True):
            busy[taker] = busy.get(taker, 0) + more
    return busy


async def _still_there(client: Client, arrays: Sequence[da.Array]) -> None:
    """Refuse to go on without chunks that nobody can make again.

    What is made of lost chunks is lost with them, but the caller knows only these.

    Raises
    ------
    ChunksLostError
        If a chunk cannot be made again.
    """
    for x in arrays:
        if any(future.cancelled() for future in futures_of(x)):
            await finished(client, x)


class _Tasks:
    """Tasks for sums over ranges of K, and for the parts of C that these are added up to."""

    def __init__(
        self,
        spec: MatmulSpec,
        itemsizes: Mapping[str, int],
        where: Mapping[Any, str],
        able: Collection[str],
        same: str | None,
    ) -> None:
        self.spec, self.itemsizes = spec, itemsizes
        self.where, self.able, self.same = where, able, same
        # how K is cut matters to no task, and would be most of it
        depth = (spec.shape[1],)
        a_chunks, b_chunks = (spec.a_chunks[0], depth), (depth, spec.b_chunks[1])
        self.product = replace(spec, a_chunks=a_chunks, b_chunks=b_chunks).to_json()
        self.name, self.cut = token("sums"), token("sums-cut")
        self.made: dict[Any, GraphNode] = {}
        self.pins: dict[Any, str] = {}
        self.received: Counter[str] = Counter()

    def add(self, key: Any, worker: str, function: Callable[..., Any], *args: Any) -> TaskRef:
        """Add a task."""
        self.made[key] = Task(key, function, *args)
        self.pins[key] = worker
        return TaskRef(key)

    def sum_of(self, worker: str, number: int, own: Sequence[tuple[InChunk, InChunk]]) -> TaskRef:
        """Add what a worker multiplies: ranges of K in chunks of A and of B."""
        spec = self.spec
        ranges, of_a, of_b = [], [], []
        # of a matrix and its transpose, only one is needed
        tops = range(0 if self.same == "a" else len(spec.a_chunks[0]))
        lefts = range(0 if self.same == "b" else len(spec.b_chunks[1]))
        for (column, *in_a), (row, *in_b) in own:
            left = [self._given(worker, spec.key(spec.a_name, (i, column)), 1, *in_a) for i in tops]
            right = [self._given(worker, spec.key(spec.b_name, (row, j)), 0, *in_b) for j in lefts]
            of_a += [ref for ref, _ in left]
            of_b += [ref for ref, _ in right]
            ranges.append(([at for _, at in left], [at for _, at in right]))
        given = self.product, ranges, List(*of_a), List(*of_b)
        return self.add((f"{self.name}-of", number), worker, summed, *given)

    def part_of(
        self,
        worker: str,
        number: int,
        axis: int,
        low: int,
        high: int,
        sums: Mapping[str, TaskRef],
    ) -> None:
        """Add what a worker adds up: rows (axis 0) or columns (1) of all sums."""
        rows, _, columns = self.spec.shape
        nbytes = (high - low) * (rows if axis else columns) * self.spec.sums.itemsize
        parts = []
        for n, (maker, made) in enumerate(sums.items()):
            key = f"{self.name}-part", number, n
            parts.append(self.add(key, maker, part_of, axis, low, high, made))
            self.received[worker] += nbytes * (maker != worker)
        self.add((self.name, number), worker, total, self.spec.dtype.str, *parts)

    def _given(
        self, worker: str, key: Any, axis: int, low: int, high: int
    ) -> tuple[TaskRef, Range]:
        """Return a reference to what a worker needs of a chunk, and where in that it is."""
        shape = self.spec.chunk_shape(key)
        length = shape[axis]
        owner = self.where[key]
        if worker == owner:
            return TaskRef(key), (low, high, length, *key[1:])
        whole = high - low == length or owner not in self.able
        moved = length if whole else high - low
        self.received[worker] += moved * shape[1 - axis] * self.itemsizes[key[0]]
        if whole:
            return TaskRef(key), (low, high, length, *key[1:])
        cut = self.cut, axis, *key, low, high  # of A by itself a chunk may be cut both ways
        here = self.add(cut, owner, between, key, shape, axis, low, high, TaskRef(key))
        return here, (0, high - low, high - low, *key[1:])


def transposed(a: da.Array, b: da.Array) -> str | None:
    """Tell which of two arrays, "a" or "b", is made by transposing the other; None for neither.

    Examples
    --------
    >>> x = da.ones((9, 2))
    >>> transposed(x.T, x), transposed(x, x.T), transposed(da.zeros((2, 9)), x)
    ('a', 'b', None)
    """
    if a.name == b.T.name:
        return "a"
    return "b" if b.name == a.T.name else None
