"""`check_app`: what every application does, also one of another package."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, get_args, get_origin

from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.runtime.app import code, find, messages
from fpmdask.runtime.validation import alternatives, is_declared, parts_of, type_name
from fpmdask.runtime.wire import (
    PLAIN,
    Asked,
    Event,
    Nothing,
    Request,
    StepAnswer,
    StepOrder,
    TeamEvent,
    TeamOrder,
)

# So long a run of a small example may take.
SECONDS = 60.0
# Parts of messages that the runtime declares.
RUNTIME_PARTS = {
    part
    for kind in (Request, TeamOrder, StepAnswer, TeamEvent, Event, Asked)
    for part in parts_of(kind).items()
}


async def check_app(
    balancer: Any,
    app: str,
    spec: Mapping[str, Any],
    right: Callable[[Any], bool],
    *,
    wrong: Mapping[str, Any] | None = None,
    lose: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Check an application on a cluster, and that it declares all its messages.

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
    """Refuse an application of another package that does not declare all its messages."""
    if ":" not in app:
        return
    found = find(app, {})
    declared = messages(found)
    for step in declared.steps:
        code(step.name, app)
        module = step.name.partition(":")[0]
        assert module in found.worker, f"its step {step.name} is in none of its worker modules"
    assert declared is not PLAIN, (
        "it declares no messages; name a fpmdask.runtime.wire.Messages in its App.messages"
    )
    lacking = [*_undeclared(code(found.request, app), Request, "its request (App.request)")]
    lacking += _undeclared(declared.value, Nothing, "its value")
    for step in declared.steps:
        lacking += _undeclared(step.order, StepOrder, f"the order of {step.name}")
        lacking += _undeclared(step.answer, StepAnswer, f"the answer of {step.name}")
        for kind, what in ((step.command, "a command to"), (step.event, "the event of")):
            if kind is not None:
                lacking += _undeclared(kind, Nothing, f"{what} {step.name}")
    for name, kind in declared.events.items():
        lacking += _undeclared(kind, Event, f"its event {name!r}")
    for name, question in declared.questions.items():
        lacking += _undeclared(question.asked, Asked, f"its question {name!r}")
        lacking += _undeclared(question.answer, Nothing, f"the answer to its question {name!r}")
    assert not lacking, f"{app} does not declare all its messages: {'; '.join(lacking)}"


def _undeclared(kind: Any, base: Any, what: str) -> Iterator[str]:
    """Yield what a message leaves open, beside the parts of the runtime's own ``base``."""
    for one in alternatives(kind):
        if not is_declared(one):
            yield f"{what} is {type_name(one)}; declare its parts by a TypedDict"
            continue
        parts = parts_of(one)
        if missing := parts_of(base).keys() - parts.keys():
            yield f"{what} lacks {', '.join(sorted(missing))}; derive it from {base.__name__}"
        for name, part in parts.items() - RUNTIME_PARTS:
            if part is Any:
                yield f"{what}'s {name} is Any; declare its type"
            else:
                yield from _open(part, f"{what}'s {name}")


def _open(kind: Any, what: str) -> Iterator[str]:
    """Yield the mappings in a part of a message that say nothing of their values."""
    if is_declared(kind):
        for name, part in parts_of(kind).items():
            yield from _open(part, f"{what}.{name}")
        return
    inner = get_args(kind)
    is_mapping = {kind, get_origin(kind)} & {Mapping, dict}
    if is_mapping and (not inner or inner[-1] is Any):
        yield f"{what} is {type_name(kind)}; declare its parts by a TypedDict"
        return
    for one in inner:
        if one is not Ellipsis:
            yield from _open(one, what)


async def _refuses(balancer: Any, app: str, spec: Mapping[str, Any], message: str) -> None:
    said = None
    try:
        await balancer.run(app, spec)
    except (CoordinatorError, PartitionError) as error:
        said = str(error)
    assert said is not None, f"it took {spec!r}"
    assert message in said, f"it refused with: {said}"
