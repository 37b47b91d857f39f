"""An application that sends what it has not declared, by its spec: for test_refusals."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypedDict

from fpmdask.runtime.app import App
from fpmdask.runtime.coordinator.team import Attempt
from fpmdask.runtime.wire import (
    Asked,
    Messages,
    Question,
    Request,
    Step,
    StepAnswer,
    TeamEvent,
    TeamOrder,
)
from fpmdask.runtime.worker.steps import Commands, step

APP = App(
    "malformed",
    run="tests.runtime.malformed:run",
    worker=("tests.runtime.malformed",),
    messages="tests.runtime.malformed:MESSAGES",
)
# Its step is in no module, or in none that workers import ahead.
NO_STEP = App("nostep", run="tests.runtime.malformed:run", messages="tests.runtime.malformed:WRONG")
ELSEWHERE = App(
    "elsewhere",
    run="tests.runtime.malformed:run",
    worker=("tests.runtime.test_wire",),
    messages="tests.runtime.malformed:MESSAGES",
)
NO_MESSAGES = App(
    "nomessages", run="tests.runtime.malformed:run", messages="tests.runtime.malformed:APP"
)


class Order(TeamOrder):
    rows: int
    says: str  # what the worker does


class Command(TypedDict):
    go_on: bool


class Event(TeamEvent):
    rows: int


class Answer(StepAnswer):
    rows: int


class Rows(Asked):
    of: str


class RowsAnswer(TypedDict):
    rows: int


class Value(TypedDict):
    rows: int


STEP = Step("tests.runtime.malformed:compute", Order, Answer, Command, Event)
MESSAGES = Messages(Value, (STEP,), questions={"rows": Question(Rows, RowsAnswer)})
WRONG = Messages(Value, (Step("tests.runtime.malformed:nothing", Order, Answer),))
UNDECLARED = Step("tests.runtime.malformed:compute", Order, Answer)


class Loose(TypedDict):
    ticket: int
    facts: Mapping[str, Any]


class Spec(TypedDict):
    wrong: str


class Declared(Request):
    spec: Spec


# What check_app refuses: nothing is declared, the request is not, parts are not.
NOTHING_DECLARED = App("plain", run="tests.runtime.malformed:run")
NO_REQUEST = replace(APP, name="norequest")
LOOSE_MESSAGES = Messages(
    Mapping[str, Any],
    (Step("tests.runtime.malformed:compute", Loose, Answer, dict, Any),),
    {"told": Spec},
    {"rows": Question(Rows, Any)},
)
LOOSE = replace(
    APP,
    name="loose",
    request="tests.runtime.malformed:Declared",
    messages="tests.runtime.malformed:LOOSE_MESSAGES",
)
# What the worker was told of its own messages.
REFUSED = []

# spec["spec"]["wrong"] → part of an order
ORDERS = {"order": {"rows": "3"}, "unknown part": {"columns": 3}}
COMMANDS = {"command": {"go_on": 3}, "unknown command": {"halt": True}}


async def run(context):
    wrong = context.spec["spec"]["wrong"]
    await context.acquire(None)
    if wrong == "question":
        return {"rows": (await context.ask_client("rows", of="x"))["rows"]}
    if wrong == "unknown question":
        return await context.ask_client("columns", of="x")
    with Attempt(context, 0) as attempt:
        order = {"rows": 3, "says": wrong, **ORDERS.get(wrong, {})}
        declared = UNDECLARED if wrong == "step" else STEP
        attempt.dispatch(declared, dict.fromkeys(context.workers, order))
        for worker in context.workers:
            attempt.tell(worker, **COMMANDS.get(wrong, {"go_on": True}))
        answers = await attempted(attempt)
    return {"rows": "3" if wrong == "value" else sum(one["rows"] for one in answers.values())}


async def attempted(attempt):
    return await attempt.everyone(None, "compute")


def compute(order):
    step(STEP, order, lambda side, space: _compute(side, space, order))


def _compute(side, space, order):
    wrong, number = order["says"], order["attempt"]
    commands = Commands(side, space, STEP, order, f"attempt {number}", attempt=number)
    commands.get()
    if wrong == "event":
        commands.tell(rows="3")
        commands.get()  # nothing comes: the run ends
    if wrong == "waits":
        commands.get()
    if wrong == "unknown event":
        commands.tell(columns=3)
        commands.get()
    return {"answer": {"rows": "3"}, "unknown answer": {"columns": 3}}.get(wrong, {"rows": 3})
