"""Every private name of Dask does what fpmdask takes it to do, and is used in one module only."""

import ast
import asyncio
import re
import subprocess
import sys
import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from operator import add
from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest
from dask.core import flatten
from distributed import Event, Future, Worker, get_worker, wait
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.utils import offload
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.runtime import dask_private
from fpmdask.runtime.dask_private import Alias, DataNode, GraphNode, List, Task, TaskRef
from tests.eventually import until

ROOT = Path(fpmdask.__file__).parent
# Neither documented nor underscored: what dask_private reaches into, and nobody else.
UNDOCUMENTED = {
    "BokehApplication",
    "COLLECTORS",
    "add_application",
    "apply_and_enforce",
    "available_resources",
    "batched_send",
    "client_releases_keys",
    "get_data_from_worker",
    "get_process_memory",
    "http_application",
    "loose_restrictions",
    "remove_replica",
    "thread_state",
    "total_resources",
    "transitions",
    "unrunnable",
    "update_data",
}
MEBIBYTE = 1 << 20


def cluster(**options):
    nthreads = [("127.0.0.1", 1), ("127.0.0.1", 1)]
    return gen_cluster(**{"client": True, "nthreads": nthreads, "timeout": 60, **options})


# ---- dask._task_spec


def test_a_task_is_a_call_with_references_and_keywords():
    task = Task("sum", sum, [1, 2], start=TaskRef("more"))
    assert task.func is sum
    assert task.args == ([1, 2],)
    assert task.kwargs["start"].key == "more"
    assert set(task.dependencies) == {"more"}
    assert dask.get({"sum": task, "more": DataNode("more", 4)}, "sum") == 7


def test_an_alias_is_another_name_for_a_key():
    alias = Alias("b", "a")
    assert alias.target == "a"
    assert dask.get({"b": alias, "a": DataNode("a", 3)}, "b") == 3


def test_a_data_node_is_a_value():
    value = {"not": ("a", "task")}
    assert DataNode("a", value).value is value
    assert dask.get({"a": DataNode("a", value)}, "a") == value


def test_a_list_contains_nodes():
    graph = {"a": DataNode("a", 3), "all": Task("all", sum, List(TaskRef("a"), TaskRef("a"), 4))}
    assert dask.get(graph, "all") == 10


def test_all_nodes_are_graph_nodes():
    nodes = [Task("a", sum, []), Alias("b", "a"), DataNode("c", 1), List(1)]
    assert all(isinstance(node, GraphNode) for node in nodes)
    assert not isinstance(TaskRef("a"), GraphNode)


def test_a_legacy_graph_becomes_nodes():
    made = dask_private.convert_legacy_graph({"a": 1, "b": (add, "a", 2), "c": "b"})
    assert all(isinstance(node, GraphNode) for node in made.values())
    assert set(made["b"].dependencies) == {"a"}
    assert dask.get(made, "c") == 3


# ---- on clients


def test_the_meta_says_what_chunks_and_partitions_are():
    masked = da.ma.masked_array(da.ones(3, chunks=1), mask=True)
    assert type(dask_private.meta_of(da.ones(3, chunks=1))) is np.ndarray
    assert type(dask_private.meta_of(masked)) is np.ma.MaskedArray
    frame = pd.DataFrame({"a": [1, 2]}, index=pd.Index([3, 4], name="i"))
    meta = dask_private.meta_of(dd.from_pandas(frame, npartitions=2))
    assert len(meta) == 0
    assert meta.index.name == "i"
    assert meta.dtypes.equals(frame.dtypes)


def test_what_a_function_of_partitions_returns_is_made_like_its_meta():
    meta = pd.DataFrame({"a": [1.0]}).iloc[:0]
    same = dask_private.enforced(pd.DataFrame({"a": [2.0]}), meta)
    assert same["a"].tolist() == [2.0]
    assert dask_private.enforced(pd.DataFrame({"z": []}), meta) is meta
    series = dask_private.enforced(2, pd.Series([1], name="n"))
    assert series.tolist() == [2]
    assert series.name == "n"
    with pytest.raises(ValueError, match="columns in the computed data"):
        dask_private.enforced(pd.DataFrame({"z": [2.0]}), meta)


# ---- on the scheduler


@cluster()
async def test_the_scheduler_says_that_it_takes_in_graphs(c, s, *workers):
    assert not dask_private.takes_in_graphs(s)
    go_on = threading.Event()
    thread = asyncio.ensure_future(offload(go_on.wait))  # Dask has one, which orders graphs, too
    future = c.submit(add, 1, 2)
    await until(lambda: dask_private.takes_in_graphs(s))
    go_on.set()
    assert await future == 3
    assert await thread
    assert not dask_private.takes_in_graphs(s)


@cluster()
async def test_what_a_worker_has_taken_in_becomes_a_clients_data_and_is_released(c, s, a, b):
    value = np.arange(5)
    dask_private.hold_data(a, {"held": value})
    assert a.data["held"] is value
    assert "held" not in s.tasks
    dask_private.adopt_data(s, a.address, {"held": value.nbytes}, {"held": "numpy.ndarray"}, c.id)
    state = s.tasks["held"]
    assert (state.state, state.nbytes, state.type) == ("memory", 40, "numpy.ndarray")
    assert [holder.address for holder in state.who_has] == [a.address]
    assert (await c.submit(sum, Future("held", c), workers=[b.address])) == 10
    dask_private.release_for(s, c.id, ["held"], "a test")
    await until(lambda: "held" not in s.tasks and "held" not in a.data)


@cluster()
async def test_a_copy_becomes_a_replica_of_what_is_in_memory(c, s, a, b):
    original = c.submit(add, 1, 2, key="sum", workers=[a.address])
    assert await original == 3
    dask_private.hold_data(b, {"sum": 3, "unknown": 4})
    dask_private.list_replicas(s, b.address, ["sum", "unknown"], "a test")
    assert {holder.address for holder in s.tasks["sum"].who_has} == {a.address, b.address}
    await until(lambda: "unknown" not in b.data)
    assert b.data["sum"] == 3


@cluster()
async def test_lost_workers_are_not_listed_where_others_hold_the_same_until_they_tell(c, s, a, b):
    keys = ["both", "needed", "one"]
    made = [c.submit(add, 1, n, key=key, workers=[a.address]) for n, key in enumerate(keys)]
    await wait(made)
    data = await c.scatter({"no task": 1}, workers=[a.address, b.address], broadcast=True)
    dask_private.hold_data(b, {"both": 1, "needed": 2})
    dask_private.list_replicas(s, b.address, ["both", "needed"], "a test")
    release = Event()
    running = c.submit(lambda _, event: event.wait(), made[1], release, workers=[a.address])
    await until(lambda: s.tasks["needed"].waiters)

    def holders():
        return {key: {holder.address for holder in s.tasks[key].who_has} for key in [*keys, *data]}

    before, one = holders(), {b.address}
    assert before["both"] == before["needed"] == before["no task"] == {a.address, b.address}
    asked = [*keys, "no task", "unknown"]
    lost = {a.address}.__contains__
    told = dask_private.unlist_replicas(s, asked, lost, lost, "a test")
    assert told == {a.address: ["both", "needed"]}
    assert holders() == {**before, "both": one, "needed": one}
    dask_private.list_held(a, ["both", "needed", "unknown"])
    await until(lambda: holders() == before)
    assert dask_private.unlist_replicas(s, asked, lost, lambda _: False, "a test") == {}
    assert holders() == {**before, "both": one}  # a task needs the other one
    await until(lambda: "both" not in a.data)
    assert "needed" in a.data
    await release.set()
    assert await running
    made[0].release()
    await until(lambda: "both" not in b.data)


@cluster(nthreads=[("127.0.0.1", 1)] * 3)
async def test_a_fetch_that_is_aborted_goes_on_from_another_holder(c, s, a, b, other):
    asked = asyncio.Event()

    async def silent(*_, **__):
        asked.set()
        await asyncio.sleep(3600)

    a.handlers["get_data"] = silent
    held = c.submit(add, 1, 2, key="held", workers=[a.address])
    await wait(held)
    needs = c.submit(add, held, 3, workers=[b.address])
    await asked.wait()
    dask_private.hold_data(other, {"held": 3})
    dask_private.list_replicas(s, other.address, ["held"], "a test")
    dask_private.unlist_replicas(s, ["held"], {a.address}.__contains__, lambda _: False, "a test")
    dask_private.abort_fetches(b, a.address)
    assert await needs == 6


@cluster()
async def test_what_the_scheduler_has_not_heard_of_is_dropped(c, s, a, b):
    dask_private.hold_data(a, {"held": 1, "kept": 2})
    dask_private.drop_unadopted(s, a.address, ["held"], "a test")
    await until(lambda: "held" not in a.data)
    assert a.data["kept"] == 2


@cluster(config={"distributed.scheduler.allowed-failures": 10})
async def test_a_pinned_result_is_made_again_anywhere(c, s, a, b):
    pinned = [c.submit(add, 1, n, workers=[a.address], key=f"pinned-{n}") for n in (1, 2)]
    await wait(pinned)
    states = [s.tasks[future.key] for future in pinned]
    dask_private.run_anywhere(states[:1])
    await a.close()
    assert await pinned[0] == 2
    assert states[1].state == "no-worker"


@cluster()
async def test_a_task_that_waits_for_a_worker_that_is_gone_is_started(c, s, a, b):
    await a.close()
    lost = c.submit(add, 1, 2, workers=[a.address], allow_other_workers=False)
    other = c.submit(add, 1, 3, workers=[a.address], allow_other_workers=False)
    await until(lambda: len(dask_private.unrunnable(s)) == 2)
    states = [s.tasks[future.key] for future in (lost, other)]
    assert dask_private.unrunnable(s) == {*states}
    dask_private.start_anywhere(s, states[:1], "a test")
    assert await lost == 3
    assert dask_private.unrunnable(s) == {states[1]}


# ---- on workers


@cluster()
async def test_a_thread_knows_its_task(c, s, *workers):
    assert dask_private.task_of_this_thread() is None
    assert await c.submit(dask_private.task_of_this_thread, key="mine") == "mine"


@cluster()
async def test_threads_of_a_task_know_it_and_its_worker(c, s, *workers):
    def asked():
        return get_worker().name, dask_private.task_of_this_thread()

    def task():
        begin = dask_private.for_the_task_of_this_thread()
        with ThreadPoolExecutor(1, initializer=begin) as pool:
            return pool.submit(asked).result()

    name, key = await c.submit(task, key="mine", workers=[workers[0].address])
    assert (name, key) == (workers[0].name, "mine")
    with pytest.raises(ValueError, match="No worker found"):
        get_worker()


class Setup(WorkerPlugin):
    """Notes that it is set up, or fails to."""

    name = "setup"

    def __init__(self, failure=None):
        self.failure = failure
        self.worker = None

    def setup(self, worker):
        if self.failure:
            raise self.failure
        self.worker = worker


@cluster(nthreads=[])
async def test_a_plugin_is_set_up_before_a_worker_registers(c, s):
    plugin = Setup()
    worker = Worker(s.address)
    dask_private.add_plugin_before_start(worker, plugin)
    async with worker:
        assert plugin.worker is worker
        assert worker.plugins["setup"] is plugin
    refused = Worker(s.address)
    dask_private.add_plugin_before_start(refused, Setup(ValueError("no")))
    with pytest.raises(RuntimeError) as failed:
        await refused
    assert "no" in str(failed.value.__cause__)
    assert not s.workers


@cluster(nthreads=[])
async def test_a_resource_comes_with_the_registration(c, s):
    worker = Worker(s.address)
    dask_private.offer_resource_before_start(worker, "fpm", 3)
    async with worker:
        assert s.workers[worker.address].resources == {"fpm": 3}
        assert worker.state.available_resources == {"fpm": 3}


@cluster(nthreads=[])
async def test_the_memory_limit_is_the_one_given(c, s):
    for given in (512 * MEBIBYTE, 0):
        async with Worker(s.address, memory_limit=given) as worker:
            assert (dask_private.memory_limit(worker) or 0) == given
            assert s.workers[worker.address].memory_limit == given


@cluster()
async def test_data_does_not_count_as_unmanaged(c, s, a, b):
    before = dask_private.unmanaged_nbytes(a)
    assert before > 0
    dask_private.hold_data(a, {"never touched": np.zeros(256 * MEBIBYTE, np.uint8)})
    fallen = before - dask_private.unmanaged_nbytes(a)
    assert 128 * MEBIBYTE < fallen < 384 * MEBIBYTE


@cluster()
async def test_a_message_reaches_the_scheduler_from_any_thread(c, s, a, b):
    heard = []
    s.stream_handlers["fpmdask-test"] = lambda worker, **message: heard.append((worker, message))
    message = {"op": "fpmdask-test", "number": 7}
    sending = threading.Thread(target=dask_private.send_to_scheduler, args=(a, message))
    sending.start()
    await until(lambda: heard)
    sending.join()
    assert heard == [(a.address, {"number": 7})]


@cluster()
async def test_a_worker_fetches_a_value_of_another(c, s, a, b):
    x = c.persist(da.arange(4, chunks=4))
    await wait(x)
    [key] = flatten(x.__dask_keys__())
    holder, other = (a, b) if key in a.data else (b, a)
    found = await dask_private.fetch_whole(other, key, holder.address)
    assert found[key].tolist() == [0, 1, 2, 3]
    assert await dask_private.fetch_whole(other, "nowhere", holder.address) == {}
    holder.transfer_outgoing_count_limit = 0
    assert await dask_private.fetch_whole(other, key, holder.address) is None


# ---- one module


def trees():
    """Yield (path, syntax tree) of every module but `dask_private`."""
    for path in sorted(ROOT.rglob("*.py")):
        if path != Path(dask_private.__file__):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def private(name):
    return name.startswith("_") and not name.startswith("__")


def own_names(tree):
    """Return the private names that a module defines: functions, classes, attributes, variables."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def reached(tree):
    """Yield (line, name) of attributes of anything but self and cls, by a string too."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr"),
                args=[of, ast.Constant(value=str(name)), *_],
            ) if not (isinstance(of, ast.Name) and of.id in ("self", "cls")):
                yield node.lineno, name


def imported(tree):
    """Yield (line, dotted name) of everything that is imported from Dask."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.split(".")[0] in ("dask", "distributed"):
                yield node.lineno, name


@cache
def private_names_of_dask():
    """Return all private names in the sources of Dask: what is none of these is not Dask's."""
    found = set()
    for package in (dask, distributed):
        for path in Path(package.__file__).parent.rglob("*.py"):
            found.update(re.findall(r"\b_[A-Za-z]\w*", path.read_text(encoding="utf-8")))
    return found - set(dir(namedtuple("Any", "")))  # `_asdict` and the like are documented


def broken(path, tree):
    """Return what a module takes of Dask that is private, as far as can be told.

    A private attribute of another object may be Dask's unless the module itself defines that name.
    """
    own = own_names(tree)
    found = [
        f"{path}:{line}: {name}"
        for line, name in imported(tree)
        if any(private(part) or part in UNDOCUMENTED for part in name.split("."))
    ]
    for line, name in reached(tree):
        if name in UNDOCUMENTED - own or (
            private(name) and name not in own and name in private_names_of_dask()
        ):
            found.append(f"{path}:{line}: {name}")
    return found


@pytest.mark.slow
def test_no_other_module_reaches_into_dask():
    assert [line for path, tree in trees() for line in broken(path, tree)] == []


@pytest.mark.parametrize(
    "code",
    [
        "from dask._task_spec import Task",
        "import dask._task_spec as spec",
        "from distributed.worker import _global_workers",
        "from distributed.worker import thread_state",
        "def f(x): return x._meta",
        "def f(scheduler): return getattr(scheduler, '_active_graph_updates', 0)",
        "def f(worker): worker._pending_plugins = ()",
        "class A:\n    def f(self): return self.worker.batched_send",
    ],
)
def test_a_module_that_reaches_into_dask_is_found(code):
    assert len(broken("module", ast.parse(code))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "from dask.array import Array",
        "class A:\n    def __init__(self): self._meta = 1\n    def f(self): return self._meta",
        "class A:\n    def __init__(self): self._meta = 1\n\ndef f(a): return a._meta",
        "def f(pair): return pair._asdict()",
    ],
)
def test_a_module_with_private_names_of_its_own_is_not(code):
    assert broken("module", ast.parse(code)) == []


@pytest.mark.slow
def test_the_bridge_loads_nothing_that_dask_does_not_load():
    code = (
        "import sys, distributed; before = set(sys.modules); import fpmdask.runtime.dask_private; "
        "print(*(set(sys.modules) - before))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    own = {"fpmdask", "fpmdask.lazy_names", "fpmdask.runtime", "fpmdask.runtime.dask_private"}
    assert set(loaded) == own
