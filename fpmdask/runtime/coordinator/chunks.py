"""Chunks of dask arrays as a run sees them: where they are, and results that become chunks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from fpmdask.errors import ChunksLostError, CoordinatorError, RunCancelledError, named
from fpmdask.runtime.coordinator.context import CHECK, RunContext
from fpmdask.runtime.coordinator.membership import CLOSING, GONE
from fpmdask.runtime.coordinator.windows import windows
from fpmdask.runtime.dask_private import (
    adopt_data,
    drop_unadopted,
    release_for,
    run_anywhere,
    start_anywhere,
    takes_in_graphs,
    unrunnable,
)
from fpmdask.runtime.protocol import PUBLISH, WITHDRAW, Published
from fpmdask.runtime.rows import is_sent

# How often chunks that are waited for are looked for.
LOOK_SECONDS = 0.05
# Chunks are looked up, and results made Dask data, so many in one step of the event loop.
AT_ONCE = 1000
PUBLISHED_AT_ONCE = 64
# The free memory of so many workers is looked up in one step.
ASKED_AT_ONCE = 64


def holders(context: RunContext, keys: Iterable[Any]) -> dict[Any, list[str]]:
    """Return who holds each chunk and has not stopped, nobody where it is not in memory.

    Raises
    ------
    CoordinatorError
        If a chunk's task has failed.
    """
    places: dict[Any, list[str]] = {}
    for key in keys:
        state = context.scheduler.tasks.get(key)
        if state is not None and state.state == "erred":
            raise CoordinatorError(f"chunk {key} cannot be computed: {state.exception_text}")
        held = (holder.address for holder in (state and state.who_has) or ())
        places[key] = [address for address in held if not context.members.is_lost(address)]
    return places


async def _looked_up(context: RunContext, keys: Sequence[Any]) -> dict[Any, list[str]]:
    """Return the `holders`, `AT_ONCE` in a step of the event loop."""
    places: dict[Any, list[str]] = {}
    async for window in windows(keys, AT_ONCE):
        places |= holders(context, window)
    return places


def without_fpmdask(scheduler: Any, places: Mapping[Any, Sequence[str]]) -> list[str]:
    """Return the holders without fpmdask of this version, which has given the others ``fpm``."""
    states = (scheduler.workers.get(worker) for worker in {*chain.from_iterable(places.values())})
    return [state.address for state in states if state and "fpm" not in state.resources]


async def check_reachable(context: RunContext, places: Mapping[Any, Sequence[str]]) -> None:
    """Refuse chunks that only workers without fpmdask hold: nobody can ask these for pieces.

    Raises
    ------
    CoordinatorError
        With the workers and how many chunks they hold.
    """
    scheduler = context.scheduler
    give_up = time.monotonic() + context.tuning.runtime.join_seconds
    while True:
        bare = set(without_fpmdask(scheduler, places))
        alone = [holders for holders in places.values() if holders and bare.issuperset(holders)]
        if not alone:
            return
        if time.monotonic() >= give_up:
            break
        await asyncio.sleep(LOOK_SECONDS)
    states = (scheduler.workers.get(worker) for worker in {*chain.from_iterable(alone)})
    names = ", ".join(sorted(str(state.name) for state in states if state))
    raise CoordinatorError(
        f"{len(alone)} of {len(places)} chunks are only on workers without this fpmdask ({names}); "
        "install it there, or move the chunks with client.replicate"
    )


async def wait_for_chunks(context: RunContext, keys: Sequence[Any]) -> dict[Any, list[str]]:
    """Return the `holders` once every chunk is in memory somewhere, within `recovery` seconds.

    What only stopped workers hold is recomputed elsewhere, or waited for where it has no task.

    A chunk without a task may still get one: a client that lets a collection go and persists it
    again at once may hear from Dask that the chunks are in memory, which was true of those that it
    has let go, before the tasks that make the new ones arrive. Such a chunk is waited for during
    `RuntimeTuning.graph_travel_seconds`, and while the scheduler takes in graphs.

    While some are waited for, only these are looked up again: O(missing) per look, and O(keys) once
    more when they are there, as others may be gone then.

    Raises
    ------
    ChunksLostError
        If a chunk is in nobody's memory by then, or nobody can make it.
    CoordinatorError
        If a chunk's task has failed.
    """
    scheduler, patience = context.scheduler, float(context.spec["recovery"])
    travelling = context.tuning.runtime.graph_travel_seconds
    began = known = time.monotonic()
    looked = every = list(dict.fromkeys(keys))
    while True:
        places = await _looked_up(context, looked)
        missing = [key for key, addresses in places.items() if not addresses]
        if not missing and looked is every:
            return places
        context.recompute(missing)
        looked = missing or every  # once what was missing is there, others may be gone
        if not missing:
            continue
        lost = [key for key in missing if not _can_be_made(scheduler, key)]
        now = time.monotonic()
        if not lost or takes_in_graphs(scheduler):
            known = now
        late = now - began > patience
        if now - known > travelling or (lost and late):
            raise ChunksLostError(
                f"{len(lost)} input chunks were only on workers that are gone and have no task to "
                f"make them again: {named(lost)}. Build the inputs as persisted collections, or "
                "replicate scattered data"
            )
        if late:
            raise ChunksLostError(
                f"{len(missing)} input chunks were not made again within {patience:g} s: "
                f"{named(missing)}"
            )
        await asyncio.sleep(LOOK_SECONDS)


def _can_be_made(scheduler: Any, key: Any) -> bool:
    """Tell whether a chunk may come: by its task, or with a stopped worker that goes on.

    What a call of ours has sent it sends again, which takes less time than to wait.
    """
    state = scheduler.tasks.get(key)
    if state is None:
        return False
    return state.run_spec is not None or (bool(state.who_has) and not is_sent(key))


async def until_loaded(scheduler: Any, keys: Sequence[Any], run: str) -> None:
    """Wait until every chunk is in memory, or cannot be: the client that loads them cancels then.

    However long it takes: loading is the client's. What is to run on a worker that is gone may run
    on any, and so may everything once it is loaded: whoever makes a lost chunk again.
    """
    looked = every = list(dict.fromkeys(keys))
    while True:
        waiting = await _not_in_memory(scheduler, looked)
        if not waiting and looked is every:
            break
        looked = waiting or every  # once what was missing is there, others may be gone
        if not waiting:
            continue
        if stuck := unrunnable(scheduler):
            states = filter(None, map(scheduler.tasks.get, waiting))
            start_anywhere(scheduler, stuck.intersection(_made_from(states)), run)
        await asyncio.sleep(LOOK_SECONDS)
    async for window in windows(every, AT_ONCE):
        run_anywhere(_made_from(filter(None, map(scheduler.tasks.get, window))))


async def _not_in_memory(scheduler: Any, keys: Sequence[Any]) -> list[Any]:
    """Return those of the keys that nobody holds, `AT_ONCE` in a step of the event loop."""
    found = []
    async for window in windows(keys, AT_ONCE):
        for key in window:
            state = scheduler.tasks.get(key)
            if state is None or not state.who_has:
                found.append(key)
    return found


def _made_from(states: Iterable[Any]) -> list[Any]:
    """Return tasks and all that they are made from. O(tasks)."""
    open_ = list(states)
    found = set(open_)
    while open_:
        new = open_.pop().dependencies - found
        found |= new
        open_ += new
    return list(found)


def free_nbytes(context: RunContext, address: str) -> float:
    """Return the bytes a plan may still put on a worker (inf: it has no memory limit)."""
    found = context.coordinator.known_workers.accounts.account(context.scheduler.workers[address])
    # who asks before a run has to wait for the others
    waits = context.run == CHECK and context.coordinator.runs.keys() - {context.lease}
    return found.free_later() if waits else found.free()


async def free_nbytes_of(context: RunContext, addresses: Sequence[str]) -> dict[str, float]:
    """Return `free_nbytes` of each worker, `ASKED_AT_ONCE` in a step; 0 for one that has left."""
    found: dict[str, float] = {}
    async for window in windows(addresses, ASKED_AT_ONCE):
        for address in window:
            here = address in context.scheduler.workers
            found[address] = free_nbytes(context, address) if here else 0.0
    return found


ToPublish = Sequence[tuple[Any, int, Any]]


async def publish(context: RunContext, keys: Mapping[str, ToPublish]) -> bool:
    """Make parts Dask data of the calling client; tell whether all workers could: `unpublished`."""
    return not await unpublished(context, keys)


async def unpublished(context: RunContext, keys: Mapping[str, ToPublish]) -> dict[str, str]:
    """Make parts Dask data of the calling client: worker → (Dask key, part, bounds of the chunk).

    Nothing is published when one of the workers is gone or closing, or does not answer: these are
    returned, with the reason. Whatever is raised, a cancellation too, ends the run on its workers,
    and nothing stays published.

    Raises
    ------
    RunCancelledError
        If the client has disconnected.
    """
    answered = context.coordinator.known_workers.liveness.answer
    try:
        answers = await asyncio.gather(
            *(
                answered(
                    address,
                    PUBLISH.ask(
                        context.scheduler.rpc(address), run=context.run, chunks=list(chunks)
                    ),
                    "publish its part",
                )
                for address, chunks in keys.items()
            ),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, OSError):
                raise answer
        _check_client(context)
    except BaseException:
        # in this order: a worker that has not published yet does not do so after the first message
        context.members.forget()
        _free(context, keys)
        raise
    # None is what Dask answers where there is no such handler any more: the worker is closing
    failed = {
        address: CLOSING if answer is None else f"did not answer: {answer!r}"
        for address, answer in zip(keys, answers, strict=True)
        if answer is None or isinstance(answer, OSError)
    }
    failed |= {address: GONE for address in keys if address not in context.scheduler.workers}
    if failed:
        _free(context, keys)
        return failed
    published = [answer for answer in answers if isinstance(answer, Published)]
    try:
        failed = await _made_known(context, dict(zip(keys, published, strict=True)))
    except BaseException:
        context.members.forget()
        _withdraw(context, keys)
        raise
    if failed:
        _withdraw(context, keys)
    return failed


async def _made_known(context: RunContext, answers: Mapping[str, Published]) -> dict[str, str]:
    """Tell the scheduler what workers have published, in steps; return those that leave meanwhile.

    Raises
    ------
    RunCancelledError
        If the client disconnects meanwhile.
    """
    scheduler, known = context.scheduler, 0
    for address, answer in answers.items():
        if known >= PUBLISHED_AT_ONCE:
            known = 0
            await asyncio.sleep(0)
            _check_client(context)
            if gone := answers.keys() - scheduler.workers.keys():
                return dict.fromkeys(gone, GONE)
        adopt_data(scheduler, address, answer.nbytes, answer.types, context.client)
        context.published.extend(answer.nbytes)
        known += len(answer.nbytes)
    return {}


def _check_client(context: RunContext) -> None:
    """Refuse to publish for a client that has left, and whose cancellation is on the way.

    The scheduler would make a client of this name that never ends and holds the result for ever.
    """
    if context.client not in context.scheduler.clients:
        raise RunCancelledError(f"the client of run {context.run} has disconnected")


def _withdraw(context: RunContext, keys: Mapping[str, ToPublish]) -> None:
    """Have nothing of these keys published, neither at the scheduler nor on the workers."""
    if context.client in context.scheduler.clients:
        release_for(context.scheduler, context.client, context.published, context.run)
    context.published.clear()
    _free(context, keys)


def _free(context: RunContext, keys: Mapping[str, ToPublish]) -> None:
    """Have the workers drop what of these keys they publish: the scheduler knows none."""
    for address in keys.keys() & context.scheduler.workers.keys():
        published = [key for key, _, _ in keys[address]]
        # one that was asked and whose answer has not come may still copy
        context.scheduler.worker_send(address, WITHDRAW.message(run=context.run, keys=published))
        drop_unadopted(context.scheduler, address, published, context.run)
