"""Every message that crosses a process border is declared: by our code, and on a real cluster."""

import ast
import asyncio
import inspect
import logging
from pathlib import Path

import numpy as np
import pytest
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.errors import CoordinatorError
from fpmdask.runtime import protocol
from fpmdask.runtime.dask_private import send_to_scheduler
from fpmdask.runtime.rpc import Call, NoHandlerError, Notice
from fpmdask.runtime.validation import MalformedError, fitting, parts_of, required_of
from fpmdask.runtime.wire import Nothing
from fpmdask.runtime.worker.channel import Channel
from fpmdask.runtime.worker.fetch import Want
from tests.eventually import nothing_left, side_of, until

ROOT = Path(fpmdask.__file__).parent
CALLS = [one for one in vars(protocol).values() if isinstance(one, Call)]
NOTICES = [one for one in vars(protocol).values() if isinstance(one, Notice)]
APP = "tests.runtime.malformed:APP"
# The only ones that put handlers into Dask's tables, of which they are the first argument.
REGISTERING = {"answer_calls", "drop_notices", "take_back", "take_notices"}
MECHANISM = ROOT / "runtime" / "rpc.py"
# A class pickled by value for workers without fpmdask: it hands on to the checked handlers.
SHIM = ROOT / "runtime" / "coordinator" / "installation.py"
# Nothing of these fits all that is declared.
WRONG = [3.5, "wrong", {"wrong": b""}, None]


def modules():
    return [path for path in sorted(ROOT.rglob("*.py")) if path not in (MECHANISM, SHIM)]


def nodes(path, *kinds):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def name_of(call):
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def test_every_handler_is_registered_by_the_mechanism():
    for path in modules():
        tables = [
            node
            for node in nodes(path, ast.Attribute)
            if node.attr in ("handlers", "stream_handlers")
            and ast.unparse(node) != "models.handlers"
        ]
        checked = [call.args[0] for call in nodes(path, ast.Call) if name_of(call) in REGISTERING]
        methods = [call.func for call in nodes(path, ast.Call)]  # of this name, called
        allowed = {ast.unparse(node) for node in [*checked, *methods]}
        for node in tables:
            assert ast.unparse(node) in allowed, f"{path}: {ast.unparse(node)}"


def test_every_message_is_sent_as_it_is_declared():
    for path in modules():
        asked = {
            ast.unparse(call.args[0])
            for call in nodes(path, ast.Call)
            if name_of(call) == "ask" and call.args
        }
        pinged = {
            ast.unparse(call.func.value)
            for call in nodes(path, ast.Call)
            if name_of(call) == "identity"  # Dask's own
        }
        for call in nodes(path, ast.Call):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "rpc":
                assert ast.unparse(call) in asked | pinged, f"{path}: {ast.unparse(call)}"
        for node in nodes(path, ast.Attribute):
            assert not node.attr.startswith("fpmdask_"), f"{path}: {ast.unparse(node)}"
        if path.name != "dask_private.py":
            for node in nodes(path, ast.Dict):
                keys = [getattr(key, "value", None) for key in node.keys]
                assert "op" not in keys, f"{path}: {ast.unparse(node)} is no Notice.message"


def test_the_table_of_messages_is_complete():
    names = {name for name, one in vars(protocol).items() if isinstance(one, Call | Notice)}
    rows = {line.split()[0] for line in protocol.__doc__.splitlines() if line[:2].isupper()}
    assert rows == names
    for line in protocol.__doc__.splitlines():
        if line.split(" ")[0] in names and "none" not in line:
            declared = getattr(protocol, line.split()[0])
            for part in parts_of(declared.parameters):
                assert part in line, f"{line}: {part}"


def cluster(test):
    return gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2, timeout=60)(test)


async def ready(c, workers):
    """Return a balancer, and fpmdask's side of each worker."""
    return await fpmdask.Balancer(c), [await side_of(worker) for worker in workers]


async def check_all_is_as_before(s, balancer, workers):
    assert {*s.workers} == {worker.address for worker in workers}
    await until(lambda: not s.plugins["fpmdask"].runs)
    assert await asyncio.wait_for(balancer.run(APP, {"wrong": "nothing"}), 30) == {"rows": 6}
    await nothing_left(s)


class Heard(logging.Handler):
    """What a logger says, which nobody else hears."""

    def __init__(self, name):
        super().__init__()
        self.said, self._logger = [], logging.getLogger(name)

    def emit(self, record):
        self.said.append(record.getMessage())

    def __enter__(self):
        self._logger.addHandler(self)
        self._logger.propagate = False
        return self

    def __exit__(self, *_):
        self._logger.removeHandler(self)
        self._logger.propagate = True


@cluster
async def test_handlers_have_the_parameters_that_are_declared(c, s, *workers):
    await ready(c, workers)
    for table, declared in (
        ({**s.handlers, **workers[0].handlers}, CALLS),
        (s.stream_handlers, [one for one in NOTICES if one.by_worker]),
        (workers[0].stream_handlers, [one for one in NOTICES if not one.by_worker]),
    ):
        ours = {name for name in table if name.startswith("fpmdask")}
        assert ours == {one.op for one in declared}
        for one in declared:
            signature = inspect.signature(table[one.op].__wrapped__)
            names = [*signature.parameters][getattr(one, "by_worker", 0) :]
            assert names == [*parts_of(one.parameters)], one.op
            kinds = {parameter.kind for parameter in signature.parameters.values()}
            assert kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD}, one.op


@cluster
async def test_a_notice_that_comes_late_does_not_end_its_worker(c, s, *workers):
    """As where a worker closes amid a run: its plugin has gone, its stream has not."""
    await ready(c, workers)
    await c.unregister_worker_plugin("fpmdask")
    with Heard("distributed.worker") as heard:
        for notice in NOTICES:
            if not notice.by_worker:
                s.stream_comms[workers[0].address].send(notice.message(late=True))
        address = workers[0].address
        assert await c.submit(lambda: 7, workers=[address], allow_other_workers=False) == 7
    assert heard.said == []
    assert len(s.workers) == len(workers)


def malformed(kind):
    """Yield messages that a type does not declare, and what is said of each."""
    yield {"nonsense": 1}, "has no part nonsense"
    if required_of(kind):
        yield {}, "lacks"
    for name, part in parts_of(kind).items():
        wrong = next((value for value in WRONG if not fitting(part)(value)), WRONG)
        if wrong is not WRONG:
            yield {name: wrong}, f"'s {name}"


@cluster
async def test_a_malformed_call_is_refused_to_its_sender(c, s, *workers):
    balancer, _ = await ready(c, workers)
    with Heard("distributed.core"):
        for call in CALLS:
            process = c.scheduler if call.op in s.handlers else s.rpc(workers[0].address)
            for message, says in malformed(call.parameters):
                with pytest.raises(MalformedError, match=f"^the message {call.op}.*{says}"):
                    await call.ask(process, **message)
    await check_all_is_as_before(s, balancer, workers)


@cluster
async def test_an_unknown_call_is_an_error_of_its_sender(c, s, *workers):
    balancer, _ = await ready(c, workers)
    with Heard("distributed.core"):
        for process in (c.scheduler, s.rpc(workers[0].address)):
            with pytest.raises(NoHandlerError, match="there is no handler fpmdask_nothing"):
                await Call("fpmdask_nothing", Nothing, str).ask(process)
    await check_all_is_as_before(s, balancer, workers)


@cluster
async def test_a_malformed_answer_is_an_error_of_who_has_asked(c, s, *workers):
    await ready(c, workers)

    async def probe(**message):
        return {"seconds_per_byte": "few"}

    workers[0].handlers["fpmdask_probe"] = probe
    says = r"the answer to fpmdask_probe's seconds_per_byte is a str; it must be float \| None"
    with pytest.raises(MalformedError, match=says):
        await protocol.PROBE.ask(s.rpc(workers[0].address), run="", peer="", channel=("", 1))


@cluster
async def test_a_malformed_notice_is_told_to_its_sender_and_ends_no_stream(c, s, *workers):
    balancer, _ = await ready(c, workers)
    worker = workers[0]
    with Heard("fpmdask.runtime.rpc") as refused, Heard("fpmdask.runtime.worker.side") as told:
        for notice in NOTICES:
            for message, says in malformed(notice.parameters):
                refused.said.clear()
                told.said.clear()
                for _ in range(2):  # the same is logged once
                    sent = {"op": notice.op, **message}
                    if notice.by_worker:
                        send_to_scheduler(worker, sent)
                    else:
                        s.worker_send(worker.address, sent)
                if notice.by_worker:
                    await until(lambda: len(told.said) == 2)
                    assert says in told.said[-1]
                await until(lambda: refused.said)
                assert f"the message {notice.op}" in refused.said[0]
                assert says in refused.said[0]
                assert len(refused.said) == 1
        await check_all_is_as_before(s, balancer, workers)


@cluster
async def test_a_run_of_which_a_notice_is_refused_says_so(c, s, *workers):
    balancer, sides = await ready(c, workers)
    running = asyncio.ensure_future(balancer.run(APP, {"wrong": "waits"}))
    await until(lambda: all(side.spaces for side in sides))
    [run] = sides[0].spaces
    with Heard("fpmdask.runtime.rpc"):
        wrong = {"op": "fpmdask-command", "run": run, "to": 3, "command": {}}
        s.worker_send(workers[1].address, wrong)
        with pytest.raises(CoordinatorError, match=r"worker 1: .*fpmdask-command's to is an int"):
            await asyncio.wait_for(running, 30)
    await check_all_is_as_before(s, balancer, workers)


@cluster
async def test_a_malformed_request_on_a_channel_is_refused_to_its_sender(c, s, *workers):
    balancer, (one, other) = await ready(c, workers)
    for side in (one, other):
        await side.prepare("run")
    own, peer = one.spaces["run"].exchange, workers[1].address
    own.know({peer: other.channels.address})
    other.spaces["run"].offers.offer("x", np.arange(4.0))
    out = np.zeros(4)

    def fetch(version):
        own.fetch([Want("x", ((0, 4),), out, [peer], version)]).wait()

    def raw():
        channel = Channel(other.channels.address)
        try:
            for says, request in {
                "lacks reader, wanted": {"run": "run"},
                "has no part rows": {"rows": 3},
                "wanted is an int": {"run": "run", "reader": "", "wanted": 3},
            }.items():
                channel.ask(request)
                with pytest.raises(MalformedError, match=f"a request for pieces.*{says}"):
                    channel.answer()
            channel.ask({"run": "another", "reader": "", "wanted": []})
            return channel.answer()
        finally:
            channel.close()

    with Heard("fpmdask.runtime.worker.channel") as refused:
        assert await asyncio.to_thread(raw) == {"missing": ()}
        with pytest.raises(MalformedError, match=rf"{peer}: .*wanted\[0\]\[2\] is a str; it must"):
            await asyncio.to_thread(fetch, "newest")
        await asyncio.to_thread(fetch, 0)
    np.testing.assert_array_equal(out, np.arange(4.0))
    assert len(refused.said) == 4
    for side in (one, other):
        side.forget("run")
    await check_all_is_as_before(s, balancer, workers)
