"""What calls on arrays and on frames have in common."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from dask.base import is_dask_collection
from dask.tokenize import TokenizationError
from distributed import Client, Future

from fpmdask.apps.blocks.spec import BlocksSpec
from fpmdask.apps.blocks.tasks import Call, Place, again
from fpmdask.errors import PartitionError
from fpmdask.runtime.client import arguments, proxy
from fpmdask.runtime.client.chunk_facts import rows_of
from fpmdask.runtime.client.kernels import packed
from fpmdask.runtime.client.rows import is_there, nbytes_of, sent_again
from fpmdask.runtime.dask_private import DataNode, Task, TaskRef
from fpmdask.runtime.rows import Rows

Function = Callable[..., Any]
# Brings a collection into the workers' memory: (client, collection, axis, names of workers) →
# what is there.
Load = Callable[[Client, Any, "int | None", "Sequence[str] | None"], Awaitable[Any]]
# What the function is told of each chunk of the first collection, from all that are there.
Infos = Callable[[Sequence[Any]], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Given:
    """A call of a user's, its arguments checked.

    Parameters
    ----------
    name
        Of the user's function.
    functions
        Name of a worker resource → function; "" → that of all other workers.
    collections, axes
        Those among the arguments, and where each is cut; None: it is given as a whole.
    arguments, keywords
        Of the function; a `Place` for each collection.
    distribution
        Worker name → rows, the lengths of the blocks, or None.
    whole
        Whether each chunk is a call of its own.
    sizes
        Of a block of the result on each axis, None where it may be any; None for frames.
    """

    name: str
    functions: Mapping[str, Function]
    collections: tuple[Any, ...]
    axes: tuple[int | None, ...]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    distribution: dict[str, int] | list[int] | None
    whole: bool
    sizes: tuple[int | None, ...] | None = None


@dataclass(frozen=True)
class Done:
    """What a run has computed: blocks are (start, stop, shape, chunk), in order."""

    name: str
    blocks: Sequence[tuple[int, int, tuple[int, ...], int]]
    inputs: Sequence[Any]
    spec: BlocksSpec
    code: bytes


def check_function(
    function: Any, keywords: Mapping[str, Any], others: Any, refused: Collection[str]
) -> dict[str, Function]:
    """Refuse what is no function, or cannot be given to one; return resource → function.

    ``refused`` are keywords that Dask's method takes for itself.

    Raises
    ------
    PartitionError
        With what was found.
    """
    if not callable(function):
        raise PartitionError(f"func is a {type(function).__name__}; give a function of blocks")
    if found := sorted(keywords.keys() & refused):
        raise PartitionError(
            f"found the keyword {', '.join(found)}, which Dask takes for itself and which has no "
            "meaning here; leave it out, or bind it to the function with functools.partial"
        )
    for name, value in keywords.items():
        _check_computed(value, f"the keyword {name}")
    if not isinstance(others, Mapping | None):
        raise PartitionError(
            f"implementations is a {type(others).__name__}; give name of a resource → function"
        )
    for name, other in (others or {}).items():
        if not isinstance(name, str) or not name or not callable(other):
            raise PartitionError(
                f"implementations has {name!r}: {other!r}; give name of a resource → function"
            )
    return {"": function, **(others or {})}


def check_arguments(more: Sequence[Any], kinds: Any, advice: Callable[[Any], str]) -> None:
    """Refuse collections of other kinds, and futures, among the further arguments.

    Raises
    ------
    PartitionError
        With the number of the argument.
    """
    for n, argument in enumerate(more, 1):
        if isinstance(argument, kinds):
            continue
        if is_dask_collection(argument):
            raise PartitionError(
                f"argument {n} is a {type(argument).__name__}, which is not cut as the first; "
                f"{advice(argument)}, or compute it"
            )
        _check_computed(argument, f"argument {n}")


def made_by_dask(method: Callable[..., Any], function: Function, *args: Any, **kwargs: Any) -> Any:
    """Return what Dask's own method makes of a call, which is never computed.

    Raises
    ------
    PartitionError
        For what it refuses.
    """
    try:
        return method(function, *args, **kwargs)
    except (ValueError, TypeError, OverflowError, NotImplementedError, TokenizationError) as error:
        raise PartitionError(f"as {method.__name__} of Dask says: {error}") from error


def _check_computed(value: Any, what: str) -> None:
    """Refuse a future, a collection, and what has one in it: the function would get it as it is."""
    for one in _within(value):
        found = "is" if one is value else "has in it"
        if isinstance(one, Future):
            raise PartitionError(f"{what} {found} a future; give its result (client.gather)")
        if is_dask_collection(one):
            own = "give it as an argument of its own, or " if hasattr(type(one), "ndim") else ""
            raise PartitionError(f"{what} {found} a {type(one).__name__} of dask; {own}compute it")


def _within(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict | list | tuple | set | frozenset):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _within(one)


def checked_distribution(given: Any) -> dict[str, int] | list[int] | None:
    """Return rows per worker name, the lengths of the blocks, or None.

    Raises
    ------
    PartitionError
        For anything else.

    Examples
    --------
    >>> checked_distribution({"a": 3, "b": 2}), checked_distribution((3, 2))
    ({'a': 3, 'b': 2}, [3, 2])
    """
    given = arguments.by_worker(given)
    if given is None or isinstance(given, Mapping):
        return arguments.rows_by_worker(given, math.nan)
    if isinstance(given, str | bytes) or not isinstance(given, Sequence | np.ndarray):
        found = None
    else:
        whole = (n for n in given if isinstance(n, int | np.integer) and not isinstance(n, bool))
        found = [n for n in whole if n >= 0]
    if found is None or len(found) != len(given):
        raise PartitionError(
            f"distribution = {given!r}; give worker name → rows, a report, or the lengths of the "
            "blocks (y.chunks[axis])"
        )
    return [int(n) for n in found]


def check_chunks(distribution: Any, whole: bool, lengths: Sequence[float]) -> None:
    """Refuse lengths of blocks that are not the chunks, where each chunk is a call of its own.

    Raises
    ------
    PartitionError
        With both.
    """
    if whole and isinstance(distribution, list) and (*distribution,) != (*lengths,):
        raise PartitionError(
            f"distribution = {distribution}, and the function is called for each chunk of the "
            f"first collection, of {(*lengths,)} rows; give these, or worker name → rows"
        )


def check_sum(distribution: dict[str, int] | list[int] | None, rows: float) -> None:
    """Refuse a distribution of another number of rows, as `arguments.check_sum` does."""
    if distribution is not None:
        parts = distribution.values() if isinstance(distribution, dict) else distribution
        arguments.check_sum(parts, rows)


async def computed(
    client: Client,
    given: Given,
    request: dict[str, Any],
    follow: proxy.Follow,
    load: Load,
    infos: Infos,
    place: tuple[int, int],
) -> Done:
    """Have the workers compute; ``follow`` runs ``request`` as the app "blocks".

    Parameters
    ----------
    load, infos
        As their types say.
    place
        Dimensions of the result, and which one is cut: keys have a number for each.

    Raises
    ------
    PartitionError
        Where collections have other numbers of rows than the first one, or a distribution has.
    """
    call = Call(given.functions, given.arguments, given.keywords)
    kernel = _packed(given.name, call)  # refused before any input is computed
    coming = sum(nbytes_of(x) for x in given.collections if not is_there(x))
    shares = given.distribution if isinstance(given.distribution, dict) else None
    early = {**request, "coming": coming, "distribution": shares}
    await proxy.check(client, "blocks", early)

    async def attempt() -> Done:
        loading = partial(_loaded, client, given, request["workers"], load)
        there = await proxy.leased_load(follow, request, given.collections, loading)
        inputs, rows = await rows_of(client, there, given.axes, follow, request)
        own = kernel
        if given.whole:
            own = _packed(given.name, replace(call, infos=infos(inputs)))
        spec = _spec(given, inputs, rows)
        asked = {
            **request,
            "blocks": spec.to_json(),
            "call": own,
            "distribution": "as held" if isinstance(given.distribution, list) else shares,
            "place": list(place),
            "sizes": given.sizes,
        }
        value, _ = await follow("blocks", asked)
        blocks = [(a, b, tuple(shape), chunk) for a, b, shape, chunk in value["blocks"]]
        return Done(value["name"], blocks, inputs, spec, own["code"])

    return await sent_again(given.collections, request["workers"], attempt)


async def _loaded(
    client: Client, given: Given, workers: Sequence[str] | None, load: Load
) -> list[Any]:
    pairs = zip(given.collections, given.axes, strict=True)
    return [await load(client, x, axis, workers) for x, axis in pairs]


def _packed(name: str, call: Call) -> dict[str, Any]:
    return packed(name, call, "the function and its arguments", error=PartitionError)


def _spec(given: Given, inputs: Sequence[Any], rows: tuple[Rows, ...]) -> BlocksSpec:
    """Return what the coordinator is told of the collections, now that they are in memory."""
    count, distribution, cuts = rows[0].count, given.distribution, None
    for n, one in enumerate(rows):
        if one.axis is not None and one.count != count:
            raise PartitionError(
                f"collection {n} has {one.count} rows, the first one {count}; give the same"
            )
    check_sum(distribution, count)
    check_chunks(distribution, given.whole, rows[0].lengths)
    if isinstance(distribution, list) and not given.whole:
        cuts = tuple(distribution)
    pairs = zip(inputs, given.axes, strict=True)
    nbytes = sum(nbytes_of(x) for x, axis in pairs if axis is not None)
    row_nbytes = int(nbytes) // max(1, count)
    whole = given.whole or cuts is not None
    return BlocksSpec(rows, whole, row_nbytes, tuple(filter(None, given.functions)), cuts)


def lineage(done: Done, place: tuple[int, int]) -> dict[Any, Any]:
    """Return the tasks that make blocks again, one for each, and one with the call."""
    name, spec = done.name, done.spec
    ndim, at = place
    call = f"{name}-call"
    graph: dict[Any, Any] = {call: DataNode(call, done.code)}
    for n, (start, stop, _, chunk) in enumerate(done.blocks):
        layout, chunks = [], []
        for one in spec.inputs:
            own = one.pieces((start, stop))
            layout.append((one.axis, [(low, high) for _, low, high in own]))
            chunks += [TaskRef(one.keys[c]) for c, _, _ in own]
        key = (name, *(n if axis == at else 0 for axis in range(ndim)))
        graph[key] = Task(key, again, TaskRef(call), chunk, layout, *chunks)
    return graph


def placed(arguments: Sequence[Any], is_one: Callable[[int, Any], bool]) -> tuple[Any, ...]:
    """Return arguments with a `Place` for each collection among them."""
    found: list[Any] = []
    places = 0
    for n, argument in enumerate(arguments):
        one = is_one(n, argument)
        found.append(Place(places) if one else argument)
        places += one
    return tuple(found)
