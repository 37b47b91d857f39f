"""`Balancer.stencil` on the client: arguments are checked, arrays go in, arrays come out."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.utils import funcname, parse_bytes
from distributed import Client

from fpmdask import config
from fpmdask.apps.stencil.block import Update
from fpmdask.apps.stencil.spec import Condition, StencilSpec
from fpmdask.apps.stencil.tasks import again, cut
from fpmdask.errors import ChunksLostError, PartitionError
from fpmdask.runtime.checkpoint import Call
from fpmdask.runtime.client import proxy
from fpmdask.runtime.client.arguments import rows_by_worker
from fpmdask.runtime.client.checkpoint import KeptCheckpoint
from fpmdask.runtime.client.code_digest import code_digest
from fpmdask.runtime.client.conversions import advice, as_stored, is_stored
from fpmdask.runtime.client.inputs import SENDINGS
from fpmdask.runtime.client.kernels import packed
from fpmdask.runtime.client.machines import saved_machine
from fpmdask.runtime.client.output import Output
from fpmdask.runtime.client.rows import array_in_memory, rows_of_array, rows_of_zarr
from fpmdask.runtime.dask_private import DataNode, Task, TaskRef, meta_of
from fpmdask.runtime.rows import Rows
from fpmdask.runtime.zarr_storage import place

# By which rows are shared out; the first one by default.
RULES = ("mheta", "even", "balanced", "in-core")
CONDITIONS = ("reflect", "periodic", "nearest", "none")


@dataclass(frozen=True)
class Given:
    """A call of the user's, its arguments checked.

    Parameters
    ----------
    update, name
        The function, and what it is called.
    fields, args
        Arrays, cut along the first axis only.
    settings
        The other parameters of `StencilSpec`.
    distribution
        Worker name → rows, or None.
    memory
        Bytes of each worker, by name or for all; None: what is free.
    prefetch
        Whether workers that are out of core read the next block while they compute one.
    rule
        By which rows are shared out where `distribution` is None, of `RULES`.
    machine
        As of `saved_machine`, or None.
    """

    update: Update
    name: str
    fields: tuple[Any, ...]
    args: tuple[Any, ...]
    settings: Mapping[str, Any]
    distribution: dict[str, int] | None
    memory: int | dict[str, int] | None = None
    prefetch: bool = True
    rule: str = RULES[0]
    machine: dict[str, Any] | None = None


def checked(
    update: Callable[..., Any],
    u0: Any,
    iterations: Any,
    depth: Any,
    boundary: Any,
    args: Any,
    tolerance: Any,
    check_every: Any,
    distribution: Any,
    memory: Any = None,
    prefetch: Any = True,
    machine: Any = None,
) -> Given:
    """Return what is to be iterated.

    Raises
    ------
    PartitionError
        For what cannot be.
    """
    if not callable(update):
        raise PartitionError(f"update is a {type(update).__name__}; give a function of blocks")
    several = isinstance(u0, tuple)
    if several and not u0:
        raise PartitionError("u0 = (); give an array, or a tuple of them")
    if not isinstance(args, tuple | list):
        raise PartitionError(f"args is a {type(args).__name__}; give a tuple of arrays")
    fields = [_array(x, f"u0[{n}]") for n, x in enumerate(u0 if several else (u0,))]
    constant = [_array(x, f"args[{n}]") for n, x in enumerate(args)]
    shape = fields[0].shape
    for what, arrays in (("u0", fields), ("args", constant)):
        for n, x in enumerate(arrays):
            if x.shape != shape:
                raise PartitionError(
                    f"{what}[{n}] has the shape {x.shape}, the first field {shape}; give the same"
                )
    if isinstance(iterations, bool) or not _whole(iterations, 0):
        raise PartitionError(f"iterations = {_text(iterations)}; give an int >= 0, < 2**63")
    if isinstance(check_every, bool) or not _whole(check_every, 1):
        raise PartitionError(f"check_every = {_text(check_every)}; give an int >= 1, < 2**63")
    number = isinstance(tolerance, int | float | np.integer | np.floating)
    if isinstance(tolerance, int) and abs(tolerance) > sys.float_info.max:
        raise PartitionError("tolerance is an int that no float holds; give a float >= 0")
    if tolerance is not None and (isinstance(tolerance, bool) or not number or not tolerance >= 0):
        raise PartitionError(f"tolerance = {tolerance!r}; give a number >= 0, or None")
    if not isinstance(prefetch, bool | np.bool_):
        raise PartitionError(f"prefetch = {prefetch!r}; give True or False")
    rule = RULES[0]
    if isinstance(distribution, str):
        if distribution not in RULES:
            raise PartitionError(
                f"distribution = {distribution!r}; give {', '.join(map(repr, RULES))}, a mapping "
                "of worker name to rows, or a report"
            )
        distribution, rule = None, distribution
    conditions = _conditions(boundary, shape, [x.dtype for x in (*fields, *constant)])
    settings = {
        "depth": _depths(depth, shape),
        "boundary": conditions,
        "iterations": int(iterations),
        "tolerance": None if tolerance is None else float(tolerance),
        "check_every": int(check_every),
    }
    return Given(
        Update(update, several),
        funcname(update),
        tuple(map(_cut_along_rows, fields)),
        tuple(map(_cut_along_rows, constant)),
        settings,
        rows_by_worker(distribution, shape[0]),
        _memory(memory),
        bool(prefetch),
        rule,
        saved_machine(machine),
    )


@dataclass(frozen=True)
class Storage:
    """What a call writes, beside its result in memory: as `Balancer.stencil` has it, checked."""

    out: Any = None
    save_every: int | None = None
    checkpoint: str | None = None
    checkpoint_every: int = 0


def call_name(given: Given, inputs: Sequence[Any], save_every: int | None, places: Any) -> str:
    """Return what tells the same call: its inputs' names, its code, parameters and targets."""
    names = [x.name if isinstance(x, da.Array) else tokenize(x) for x in inputs]
    code, settings = code_digest(given.update.function), sorted(given.settings.items())
    facts = names, len(given.fields), code, settings, save_every, places
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def checked_storage(out: Any, save_every: Any, checkpoint: Any, checkpoint_every: Any) -> Storage:
    """Return where a call writes to.

    Raises
    ------
    PartitionError
        For what cannot be.
    """
    for what, every, needed, value in (
        ("save_every", save_every, "out", out),
        ("checkpoint_every", checkpoint_every, "checkpoint", checkpoint),
    ):
        if every is not None and (isinstance(every, bool) or not _whole(every, 1)):
            raise PartitionError(f"{what} = {_text(every)}; give an int >= 1, < 2**63, or None")
        if every is not None and value is None:
            raise PartitionError(f"{what} is given without {needed}; give both, or neither")
    if checkpoint is None:
        return Storage(out, None if save_every is None else int(save_every))
    if not isinstance(checkpoint, str | os.PathLike):
        raise PartitionError(f"checkpoint = {checkpoint!r}; give a path or an fsspec URL")
    if checkpoint_every is None:
        raise PartitionError("checkpoint is given without checkpoint_every; give both, or neither")
    url = os.fspath(checkpoint)
    url = url if "://" in url else os.path.abspath(url)
    every = None if save_every is None else int(save_every)
    return Storage(out, every, url, int(checkpoint_every))


def _memory(given: Any) -> int | dict[str, int] | None:
    """Return bytes, or worker name → bytes."""
    if isinstance(given, Mapping):
        return {str(name): _nbytes(value, f"memory of {name}") for name, value in given.items()}
    return None if given is None else _nbytes(given, "memory")


def _nbytes(given: Any, what: str) -> int:
    try:
        found = -1 if isinstance(given, bool) else int(parse_bytes(given))
    except (AttributeError, OverflowError, TypeError, ValueError):
        found = -1
    if found <= 0:
        raise PartitionError(
            f"{what} = {_text(given)}; give bytes > 0 such as 2e8 or '200MB', for all workers or a "
            "mapping of worker names"
        )
    return found


def _text(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # an int of more digits than Python writes
        return "an int of too many digits"


def _whole(number: Any, least: int) -> bool:
    return isinstance(number, int | np.integer) and bool(least <= number < 2**63)


def _array(given: Any, what: str) -> Any:
    x = as_stored(given)
    if not is_stored(x) and not isinstance(x, da.Array | np.ndarray):
        raise PartitionError(
            f"{what} is a {type(x).__name__}, which is no array; {advice(x)}"
            + ("; several fields are a tuple" if isinstance(x, list) else "")
        )
    kept = isinstance(x, np.ma.MaskedArray | np.matrix)  # Zarr arrays and memory maps are not
    meta = meta_of(x) if isinstance(x, da.Array) else x if kept else np.empty(0, x.dtype)
    if type(meta) is not np.ndarray or x.dtype.kind not in "biufc":
        raise PartitionError(
            f"{what} is a {type(meta).__name__} of {x.dtype}; give NumPy arrays of numbers"
        )
    if any(math.isnan(n) for n in x.shape):
        raise PartitionError(
            f"{what} has the shape {x.shape}; x.compute_chunk_sizes() finds out what is unknown"
        )
    if not x.ndim or not x.size:
        raise PartitionError(f"{what} has the shape {x.shape}; give an array that has cells")
    return x


def _cut_along_rows(x: Any) -> Any:
    """Return an array with one chunk along all axes but the first."""
    if not isinstance(x, da.Array):
        return x
    return x.rechunk({0: tuple(n for n in x.chunks[0] if n), **dict.fromkeys(range(1, x.ndim), -1)})


def _per_axis(given: Any, ndim: int, what: str, default: Any) -> list[Any]:
    """Return a value for each axis of one for all, a sequence, or a mapping of some axes."""
    if isinstance(given, Mapping):
        for axis in given:
            if isinstance(axis, bool) or not _whole(axis, 0) or axis >= ndim:
                raise PartitionError(
                    f"{what} has a value for axis {_text(axis)}; there are axes 0 to {ndim - 1}"
                )
        return [given.get(axis, default) for axis in range(ndim)]
    if isinstance(given, tuple | list):
        if len(given) != ndim:
            raise PartitionError(
                f"{what} = {_text(given)}; give one value, or {ndim}: one for each axis"
            )
        return list(given)
    return [given] * ndim


def _depths(given: Any, shape: Sequence[int]) -> tuple[int, ...]:
    found = _per_axis(given, len(shape), "depth", 0)
    for axis, (cells, length) in enumerate(zip(found, shape, strict=True)):
        if isinstance(cells, bool) or not _whole(cells, 0):
            raise PartitionError(
                f"depth = {_text(given)}; give an int >= 0, for all axes or for each, and at most "
                "the cells of its axis"
            )
        if cells > length:
            raise PartitionError(
                f"depth is {cells} on axis {axis}, which has {length} cells; give at most that"
            )
    return tuple(map(int, found))


def _conditions(given: Any, shape: Sequence[int], dtypes: Sequence[Any]) -> tuple[Condition, ...]:
    found: list[Condition] = []
    for one in _per_axis(given, len(shape), "boundary", "none"):
        value = one.item() if isinstance(one, np.generic) else one
        if value is None:
            value = "none"
        named = isinstance(value, str) and value in CONDITIONS
        if not isinstance(value, int | float) and not named:
            raise PartitionError(
                f"boundary = {_text(given)}; give {', '.join(CONDITIONS)}, or a number, for all "
                "axes or for each"
            )
        if not isinstance(value, str):
            for dtype in dtypes:
                try:
                    np.zeros(1, dtype)[...] = value
                except (OverflowError, ValueError) as error:
                    raise PartitionError(
                        f"boundary = {_text(given)} cannot be a value of {dtype} ({error})"
                    ) from error
        found.append(value)
    return tuple(found)


async def stencil(
    client: Client,
    given: Given,
    storage: Storage,
    request: dict[str, Any],
    follow: proxy.Follow,
) -> Any:
    """Iterate; ``follow`` runs ``request`` as the app "stencil"."""
    shape, dtypes = given.fields[0].shape, [np.dtype(x.dtype) for x in given.fields]
    several, iterations = given.update.several, given.settings["iterations"]
    inputs, warned, every = (*given.fields, *given.args), set[str](), storage.save_every
    kept, output = None, None
    request = {
        **request,
        "distribution": given.distribution,
        "memory": given.memory,
        "prefetch": given.prefetch,
        "rule": given.rule,
        "machine": given.machine,
        # as far as it is known before its arrays are made
        "output": None if storage.out is None else {"nbytes": 0},
        "checkpoint": None,
    }
    await _check(client, given, request)
    kernel = packed(given.name, given.update, "update", error=PartitionError)

    def heard(event: Mapping[str, Any]) -> None:
        if event["event"] == "warning" and event["message"] not in warned:
            warned.add(event["message"])
            warnings.warn(event["message"], stacklevel=2)

    if storage.out is not None:
        output = Output(storage.out, shape, dtypes, several, every, iterations)
    try:
        if output is not None and every is None:  # snapshots that are there are not written to
            output.check_apart(*inputs)
        if storage.checkpoint is not None:
            places = [] if output is None else [place(target.out) for target in output.targets]
            name = await asyncio.to_thread(call_name, given, inputs, every, places)
            call = Call(name, tuple(shape), tuple(dtype.str for dtype in dtypes))
            kept = KeptCheckpoint(storage.checkpoint, storage.checkpoint_every, call)
            if output is not None:
                output.call = name
        async with kept or nullcontext():
            with output or nullcontext():
                if output is not None:
                    seconds = config.tuning().runtime.out_answer_seconds
                    await output.check_reached(client, request["workers"], seconds)
                    request["output"] = output.order()
                    await _check(client, given, request)
                if kept is not None:
                    request["checkpoint"] = kept.order()
                follow = partial(follow, heard=heard)
                found = await _iterated(client, given, kernel, request, follow)
    except BaseException:
        if output is not None:
            output.discard()
        raise
    if output is not None:
        found = tuple(output.results())
    return found if several else found[0]


async def _check(client: Client, given: Given, request: Mapping[str, Any]) -> None:
    """Have the coordinator refuse what cannot be run, before anything is sent or made."""
    arrays, count = (*given.fields, *given.args), len(given.fields)
    shapes = [Rows((), (x.shape[0],), 0, x.dtype.str, x.shape) for x in arrays]
    spec = StencilSpec(tuple(shapes[:count]), tuple(shapes[count:]), **given.settings)
    await proxy.check(client, "stencil", {**request, "stencil": spec.to_json()})


async def _iterated(
    client: Client,
    given: Given,
    kernel: Mapping[str, Any],
    request: dict[str, Any],
    follow: proxy.Follow,
) -> tuple[da.Array, ...]:
    """Return the fields, or nothing where they are written to an output."""
    arrays = (*given.fields, *given.args)
    count = len(given.fields)
    # what is in this process can be sent again
    sendings = SENDINGS if any(isinstance(x, np.ndarray) for x in arrays) else 1
    while True:
        load = partial(_in_memory, client, arrays, request["workers"])
        inputs = await proxy.leased_load(follow, request, arrays, load)
        rows = [rows_of_zarr(x) if is_stored(x) else rows_of_array(x, 0) for x in inputs]
        spec = StencilSpec(tuple(rows[:count]), tuple(rows[count:]), **given.settings)
        asked = {
            **request,
            "stencil": spec.to_json(),
            "update": kernel,
        }
        sendings -= 1
        try:
            value, _ = await follow("stencil", asked)
        except ChunksLostError:
            if not sendings:
                raise
            del inputs
        else:
            break
    if request["output"] is not None:
        return ()
    return _collected(client, spec, kernel["code"], value, inputs)


def _collected(
    client: Client, spec: StencilSpec, code: bytes, value: Mapping[str, Any], inputs: Sequence[Any]
) -> tuple[da.Array, ...]:
    """Return the fields over the published keys, with the tasks that make them again."""
    made = f"{value['names'][0]}-again"
    chunks = [TaskRef(key) for one in (*spec.fields, *spec.args) for key in one.keys]
    counts = [len(one.keys) for one in (*spec.fields, *spec.args)]
    facts = f"{made}-spec"
    shared: dict[Any, Any] = {
        facts: DataNode(facts, (code, spec.to_json())),
        made: Task(made, again, TaskRef(facts), value["iterations"], counts, *chunks),
    }
    found = []
    edges = [0, *accumulate(value["sizes"])]
    after = (0,) * (len(spec.shape) - 1)
    for field, (name, one) in enumerate(zip(value["names"], spec.fields, strict=True)):
        graph: dict[Any, Any] = {
            (name, n, *after): Task((name, n, *after), cut, TaskRef(made), field, *span)
            for n, span in enumerate(pairwise(edges))
        }
        dependencies: Any = [x for x in inputs if isinstance(x, da.Array)]
        layers = HighLevelGraph.from_collections(
            name, {**shared, **graph}, dependencies=dependencies
        )
        sizes = (tuple(value["sizes"]), *((n,) for n in spec.shape[1:]))
        found.append(da.Array(layers, name, chunks=sizes, dtype=np.dtype(one.dtype)))
    return tuple(client.persist(found, optimize_graph=False))


async def _in_memory(client: Client, arrays: Sequence[Any], workers: Sequence[str] | None) -> Any:
    return [x if is_stored(x) else await array_in_memory(client, x, workers) for x in arrays]
