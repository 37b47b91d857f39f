"""`check_app`: what every application does, also one of another package."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.runtime.app import code, find, messages

# So long a run of a small example may take.
SECONDS = 60.0


async def check_app(
    balancer: Any,
    app: str,
    spec: Mapping[str, Any],
    right: Callable[[Any], bool],
    *,
    wrong: Mapping[str, Any] | None = None,
    lose: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Check an application on a cluster.

    Parameters
    ----------
    balancer : Balancer
        Of an asynchronous client; its `progress` is used.
    app
        As for `Balancer.run`.
    spec
        A small example, which takes less than a minute.
    right
        Tells whether a value is right.
    wrong
        A spec that the application refuses before anything starts.
    lose
        Ends a worker; called in the middle of a run.

    Raises
    ------
    AssertionError
        Saying what does not hold.
    CoordinatorError
        If its code cannot be imported here.
    """
    _declares(app)
    events: list[Mapping[str, Any]] = []
    begun = asyncio.Event()

    def heard(event: Mapping[str, Any]) -> None:
        events.append(event)
        if event["event"] not in ("start", "end", "failed"):
            begun.set()

    before, balancer.progress = balancer.progress, heard
    try:
        await _refuses(balancer, app, {**spec, "object": object()}, "is a object")
        assert not events, "it told of events before its spec was refused"
        if wrong is not None:
            await _refuses(balancer, app, wrong, "")
            told = [event["event"] for event in events]
            assert told == ["failed"], f"it told of {told} before it refused its spec"
        runs = set()
        for _ in range(2):
            events.clear()
            value = await asyncio.wait_for(balancer.run(app, spec), SECONDS)
            assert right(value), f"it returned {value!r}"
            fractions = [event["fraction"] for event in events]
            assert fractions == sorted(fractions), f"its progress falls: {fractions}"
            assert any(0 < fraction < 1 for fraction in fractions), "it tells of no progress"
            assert (events[-1]["event"], fractions[-1]) == ("end", 1.0), events[-1]
            assert balancer.report is not None, "it left no report"
            runs.add(balancer.report.run)
            assert balancer.report.workers, "its report names no worker: set_result was not called"
        assert len(runs) == 2, f"two runs have the same id: {runs}"
        begun.clear()
        running = asyncio.ensure_future(balancer.run(app, spec))
        await asyncio.wait([running, asyncio.ensure_future(begun.wait())], timeout=SECONDS)
        running.cancel()
        await asyncio.wait([running])
        value = await asyncio.wait_for(balancer.run(app, spec), SECONDS)
        assert right(value), f"after a run that was cancelled it returned {value!r}"
        if lose is not None:
            begun.clear()
            running = asyncio.ensure_future(balancer.run(app, spec))
            await asyncio.wait([running, asyncio.ensure_future(begun.wait())], timeout=SECONDS)
            await lose()
            try:
                value = await asyncio.wait_for(running, SECONDS)
            except CoordinatorError:
                value = await asyncio.wait_for(balancer.run(app, spec), SECONDS)
            assert right(value), f"after a worker was lost it returned {value!r}"
    finally:
        balancer.progress = before


def _declares(app: str) -> None:
    """Look for the steps of an application of another package, which its messages declare."""
    if ":" not in app:
        return
    found = find(app, {})
    for step in messages(found).steps:
        code(step.name, app)
        module = step.name.partition(":")[0]
        assert module in found.worker, f"its step {step.name} is in none of its worker modules"


async def _refuses(balancer: Any, app: str, spec: Mapping[str, Any], message: str) -> None:
    said = None
    try:
        await balancer.run(app, spec)
    except (CoordinatorError, PartitionError) as error:
        said = str(error)
    assert said is not None, f"it took {spec!r}"
    assert message in said, f"it refused with: {said}"
