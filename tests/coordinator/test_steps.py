"""What a step answers: its result, what failed, or that nobody wants it any more."""

import pytest
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.runtime.wire import Step, StepAnswer, StepOrder
from fpmdask.runtime.worker.space import RunSpace
from fpmdask.runtime.worker.steps import step
from fpmdask.timing import Scratch
from tests.eventually import side_of


class Seconds(StepAnswer):
    seconds: float


STEP = Step("tests.coordinator.test_steps:works", StepOrder, Seconds)


def works(side, space):
    return {"seconds": 1.0}


def fails(side, space):
    raise KeyError("part")


def fails_when_the_run_is_over(side, space):
    space.cancel()
    return space.partial["part"]


async def answer(client, worker, work):
    """Run one step on a real worker; return what it sends."""
    await fpmdask.Balancer(client)
    side = await side_of(worker)
    side.spaces["run"] = RunSpace("run", Scratch())
    sent, send = [], worker.batched_send

    def batched_send(message):
        sent.append(message)
        send(message)

    worker.batched_send = batched_send
    await client.submit(step, STEP, {"run": "run", "ticket": 7}, work, pure=False)
    [found] = [message for message in sent if message["op"] == "fpmdask-answer"]
    assert (found["run"], found["ticket"]) == ("run", 7)
    return found["answer"]


@pytest.mark.parametrize(
    ("work", "key"),
    [(works, "seconds"), (fails, "error"), (fails_when_the_run_is_over, "cancelled")],
)
def test_a_step_answers_once(work, key):
    @gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
    async def run(c, s, worker):
        found = await answer(c, worker, work)
        assert {"seconds", "error", "cancelled"}.intersection(found) == {key}

    run()
