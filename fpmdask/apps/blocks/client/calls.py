"""What calls on arrays and on frames have in common."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.base import is_dask_collection
from distributed import Client, Future

from fpmdask.apps.blocks.spec import BlocksSpec
from fpmdask.apps.blocks.tasks import Call, Place, again
from fpmdask.errors import PartitionError
from fpmdask.runtime.client import arguments, proxy
from fpmdask.runtime.client.kernels import packed
from fpmdask.runtime.client.rows import is_there, nbytes_of, sent_again
from fpmdask.runtime.dask_private import DataNode, Task, TaskRef
from fpmdask.runtime.rows import Rows

Function = Callable[..., Any]
# Brings a collection into the workers' memory: (client, collection, axis, names of workers) →
# what is there, and what a run is told of it.
Load = Callable[[Client, Any, "int | None", "Sequence[str] | None"], Awaitable[tuple[Any, Rows]]]
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
        if is_dask_collection(value):
            raise PartitionError(
                f"the keyword {name} is a dask collection; give it as an argument, or compute it"
            )
        check_no_future(value, f"the keyword {name}")
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
        check_no_future(argument, f"argument {n}")
        if is_dask_collection(argument) and not isinstance(argument, kinds):
            raise PartitionError(
                f"argument {n} is a {type(argument).__name__}, which is not cut as the first; "
                f"{advice(argument)}"
            )


def made_by_dask(method: Callable[..., Any], function: Function, *args: Any, **kwargs: Any) -> Any:
    """Return what Dask's own method makes of a call, which is never computed.

    Raises
    ------
    PartitionError
        For what it refuses.
    """
    try:
        return method(function, *args, **kwargs)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise PartitionError(f"as {method.__name__} of Dask says: {error}") from error


def check_no_future(value: Any, what: str) -> None:
    """Refuse a future: nobody would wait for it.

    Raises
    ------
    PartitionError
        With what to give.
    """
    if isinstance(value, Future):
        raise PartitionError(f"{what} is a future; give its result (client.gather)")


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
        found = [n for n in given if isinstance(n, int | np.integer) and n >= 0]
    if found is None or len(found) != len(given):
        raise PartitionError(
            f"distribution = {given!r}; give worker name → rows, a report, or the lengths of the "
            "blocks (y.chunks[axis])"
        )
    return [int(n) for n in found]


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
    coming = sum(nbytes_of(x) for x in given.collections if not is_there(x))
    shares = given.distribution if isinstance(given.distribution, dict) else None
    early = {**request, "coming": coming, "distribution": shares}
    await proxy.check(client, "blocks", early)

    async def attempt() -> Done:
        loaded = [
            await load(client, x, axis, request["workers"])
            for x, axis in zip(given.collections, given.axes, strict=True)
        ]
        inputs, rows = [x for x, _ in loaded], tuple(one for _, one in loaded)
        call = Call(
            given.functions,
            given.arguments,
            given.keywords,
            infos(inputs) if given.whole else (),
        )
        asked, spec, code = _asked(given, request, inputs, rows, call, place)
        value, _ = await follow("blocks", asked)
        blocks = [(a, b, tuple(shape), chunk) for a, b, shape, chunk in value["blocks"]]
        return Done(value["name"], blocks, inputs, spec, code)

    return await sent_again(given.collections, request["workers"], attempt)


def _asked(
    given: Given,
    request: Mapping[str, Any],
    inputs: Sequence[Any],
    rows: tuple[Rows, ...],
    call: Call,
    place: tuple[int, int],
) -> tuple[dict[str, Any], BlocksSpec, bytes]:
    """Return what the coordinator is asked, its spec, and the call as bytes."""
    count, distribution, cuts = rows[0].count, given.distribution, None
    for n, one in enumerate(rows):
        if one.axis is not None and one.count != count:
            raise PartitionError(
                f"collection {n} has {one.count} rows, the first one {count}; give the same"
            )
    check_sum(distribution, count)
    if isinstance(distribution, list):
        cuts = tuple(distribution)
        if given.whole and cuts != rows[0].lengths:
            raise PartitionError(
                f"distribution = {cuts}, and the function is called for each chunk of the first "
                f"collection, of {rows[0].lengths} rows; give these, or worker name → rows"
            )
        cuts = None if given.whole else cuts
    pairs = zip(inputs, given.axes, strict=True)
    nbytes = sum(nbytes_of(x) for x, axis in pairs if axis is not None)
    row_nbytes = int(nbytes) // max(1, count)
    whole = given.whole or cuts is not None
    spec = BlocksSpec(rows, whole, row_nbytes, tuple(filter(None, given.functions)), cuts)
    what = "the function and its arguments"
    kernel = packed(given.name, call, what, error=PartitionError)
    asked = {
        **request,
        "blocks": spec.to_json(),
        "call": kernel,
        "distribution": "as held" if isinstance(distribution, list) else distribution,
        "place": list(place),
        "sizes": given.sizes,
    }
    return asked, spec, kernel["code"]


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
