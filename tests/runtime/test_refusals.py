"""A malformed or unknown message of any kind is refused, and its sender is told what is wrong."""

import asyncio
import logging

import pytest
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps import APPS
from fpmdask.errors import CoordinatorError
from fpmdask.runtime.app import code, find, messages
from fpmdask.runtime.client import conformance
from fpmdask.runtime.client.conformance import check_app
from tests.eventually import nothing_left, until
from tests.runtime import malformed

APP = "tests.runtime.malformed:APP"
STEP = "tests.runtime.malformed:compute"
# who has sent what is wrong → what its refusal says
BY_THE_COORDINATOR = {
    "order": f"the order of {STEP}'s rows is a str; it must be int",
    "unknown part": f"the order of {STEP} has no part columns; parts are .*rows, says",
    "command": f"a command to {STEP}'s go_on is an int; it must be bool",
    "unknown command": f"a command to {STEP} has no part halt; parts are go_on",
    "value": "the value of .*'s rows is a str; it must be int",
}
BY_A_WORKER = {
    "event": f"the event of {STEP}'s rows is a str; it must be int",
    "unknown event": f"the event of {STEP} has no part columns; parts are attempt, rows",
    "answer": f"the answer of {STEP} has the parts|the answer of {STEP}'s rows is a str",
    "unknown answer": f"the answer of {STEP} has the parts columns, .*; allowed are .*rows",
}


def cluster(test):
    return gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2, timeout=60)(test)


async def run(balancer, wrong):
    return await asyncio.wait_for(balancer.run(APP, {"wrong": wrong}), 30)


async def check_all_is_as_before(s, balancer):
    await until(lambda: not s.plugins["fpmdask"].runs)
    await nothing_left(s)
    assert await run(balancer, "nothing") == {"rows": 6}


@cluster
async def test_what_the_coordinator_sends_is_refused_and_the_run_says_so(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    for wrong, says in BY_THE_COORDINATOR.items():
        with pytest.raises(CoordinatorError, match=says):
            await run(balancer, wrong)
    await check_all_is_as_before(s, balancer)


@cluster
async def test_what_a_worker_sends_is_refused_and_it_is_told(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logger = logging.getLogger("fpmdask.runtime.worker.side")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        for wrong, says in BY_A_WORKER.items():
            told.clear()
            with pytest.raises(CoordinatorError, match=says):
                await run(balancer, wrong)
            await until(lambda: told)
            assert f"of {STEP}" in told[0]
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    await check_all_is_as_before(s, balancer)


@cluster
async def test_what_a_client_answers_is_refused_and_it_is_told(c, s, *workers):
    await fpmdask.Balancer(c)
    spec = {"workers": None, "spec": {"wrong": "question"}}
    measuring = {"epsilon": 0.1, "thorough": False, "max_rounds": 3, "policy": None}
    measuring |= {"deadline": 9.0, "hang": 9.0}
    start = c.scheduler.fpmdask_start
    number = await start(app=APP, client=c.id, spec={**spec, "measuring": measuring})
    asked = {"requests": []}
    while not asked["requests"]:
        asked = await c.scheduler.fpmdask_poll(run=number, seen=0, asked=0)
    assert [*asked["requests"]] == [{"request": "rows", "of": "x"}]
    for answer, says in (
        ({"rows": "3"}, "the answer to rows's rows is a str; it must be int"),
        ({"columns": 3}, "the answer to rows has no part columns; parts are rows"),
        ([3], "the answer to rows is a tuple; it must be a mapping"),
    ):
        with pytest.raises(CoordinatorError, match=says):
            await c.scheduler.fpmdask_answer(run=number, number=0, answer=answer)
    with pytest.raises(CoordinatorError, match="waits for no answer to a request 1"):
        await c.scheduler.fpmdask_answer(run=number, number=1, answer={"rows": 3})
    await c.scheduler.fpmdask_answer(run=number, number=0, answer={"rows": 3})
    found = {}
    while "result" not in found:
        found = await c.scheduler.fpmdask_poll(run=number, seen=9, asked=1)
    assert found["result"]["value"] == {"rows": 3}


@cluster
async def test_a_question_that_is_not_declared_is_not_asked(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    says = (
        r"^the application of run \S+ declares no question 'columns'; it declares rows: add it to "
        r"the questions of its Messages$"
    )
    with pytest.raises(CoordinatorError, match=says):
        await run(balancer, "unknown question")
    await check_all_is_as_before(s, balancer)


@cluster
async def test_a_step_that_is_not_declared_is_not_submitted(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    declared = malformed.MESSAGES
    malformed_step = f"declares no step {STEP}|declares {STEP}"
    assert malformed.UNDECLARED not in declared.steps
    with pytest.raises(CoordinatorError, match=malformed_step):
        await run(balancer, "step")


@cluster
async def test_conformance_includes_the_messages(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    for app, says in {
        "NO_STEP": "nothing.* cannot be imported",
        "ELSEWHERE": f"{STEP} is in none of its worker modules",
        "NO_MESSAGES": "is a App; give fpmdask.runtime.wire.Messages",
        "NOTHING_DECLARED": "it declares no messages; name a fpmdask.runtime.wire.Messages in its",
        "NO_REQUEST": r"its request \(App.request\)'s spec is .*Mapping\[str, .*Any\]; declare its",
        "LOOSE": "its value is .*Mapping.*; declare its parts by a TypedDict",
    }.items():
        with pytest.raises((AssertionError, CoordinatorError), match=says):
            await check_app(balancer, f"tests.runtime.malformed:{app}", {}, bool)


@pytest.mark.parametrize(
    "says",
    [
        f"the order of {STEP} lacks run; derive it from StepOrder",
        f"the order of {STEP}'s facts is .*Mapping.*; declare its parts by a TypedDict",
        f"a command to {STEP} is dict; declare its parts",
        f"the event of {STEP} is .*Any; declare its parts",
        "its event 'told' lacks event, seconds; derive it from Event",
        "the answer to its question 'rows' is .*Any; declare its parts",
    ],
)
def test_all_that_an_application_leaves_undeclared_is_named(says):
    with pytest.raises(AssertionError, match=says):
        conformance._declares("tests.runtime.malformed:LOOSE")


@pytest.mark.parametrize("app", APPS)
def test_the_steps_that_ours_declare_are_in_their_worker_modules(app):
    found = find(app, APPS)
    declared = messages(found)
    for one in declared.steps:
        assert callable(code(one.name, app))
        module = one.name.partition(":")[0]
        assert any(module == own or module.startswith(f"{own}.") for own in found.worker), one.name
