"""The bridge to what Dask does not document: every private name that fpmdask uses is here.

Clients, the scheduler and workers import it; each function says in which process it is called. It
loads nothing that ``import distributed`` does not load, and owns no state.

Private is what begins with an underscore, and what Dask neither documents nor promises to keep. All
of it is as in Dask and distributed 2026.8.0; ``tests/runtime/test_dask_private.py`` tests each name
with Dask itself, so a new release that changes one fails there. Docstrings say what to use then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from dask._task_spec import Alias as Alias
from dask._task_spec import DataNode as DataNode
from dask._task_spec import GraphNode as GraphNode
from dask._task_spec import List as List
from dask._task_spec import Task as Task
from dask._task_spec import TaskRef as TaskRef
from dask._task_spec import convert_legacy_graph as convert_legacy_graph
from distributed.worker import get_data_from_worker, thread_state

if TYPE_CHECKING:
    from distributed import Scheduler, Worker
    from distributed.diagnostics.plugin import WorkerPlugin
    from distributed.scheduler import TaskState

# `dask._task_spec`, re-exported: the nodes of a graph. ``Task(key, function, *args, **kwargs)`` is
# a call, `TaskRef` a reference to another key among its arguments, `Alias` one name for another
# key, `DataNode` a literal, `List` a list that contains nodes, `GraphNode` the base class of all of
# them but `TaskRef`; `convert_legacy_graph` makes them of tuples. Should they move: dask.array.core
# imports them from where they are then.


# ---- on clients


def meta_of(collection: Any) -> Any:
    """Return the empty array or frame that says what the chunks or partitions of a collection are.

    Uses ``Array._meta`` and ``DataFrame._meta``. Should they change: ``x.compute()`` of a slice
    without elements, which costs a task.
    """
    return collection._meta


def enforced(found: Any, meta: Any) -> Any:
    """Return what a function of partitions has returned, made to be like ``meta``.

    In any process. Uses ``dask.dataframe.core.apply_and_enforce``, which `map_partitions` uses:
    scalars become series, what has no rows ``meta``, columns are checked and named. Should it
    change: check ``found.columns``.
    """
    from dask.dataframe.core import apply_and_enforce

    return apply_and_enforce(_func=lambda: found, _meta=meta)


# ---- on the scheduler


def takes_in_graphs(scheduler: Scheduler) -> bool:
    """Tell whether the scheduler is still making tasks of a graph that a client has sent.

    Uses ``Scheduler._active_graph_updates``, a count. Should it change: False, after which chunks
    that are made again within a second count as lost only if their graph takes longer to arrive.
    """
    return bool(scheduler._active_graph_updates > 0)


def adopt_data(
    scheduler: Scheduler,
    worker: str,
    nbytes: Mapping[Any, int],
    types: Mapping[Any, str],
    client: str,
) -> None:
    """Make what a worker has taken in by `hold_data` data of a client.

    Parameters
    ----------
    worker
        Address of the worker that holds all of it.
    nbytes, types
        Key → bytes, and `dask.utils.typename` of the value's type.
    client
        Id of a client that is connected.

    Notes
    -----
    Uses ``Scheduler.update_data``, which `Client.scatter` uses, and ``TaskState.type``, which a
    scattered value lacks. Should they change: scatter from a task on the worker.
    """
    scheduler.update_data(
        who_has={key: [worker] for key in nbytes}, nbytes=dict(nbytes), client=client
    )
    for key, name in types.items():
        scheduler.tasks[key].type = name


def list_replicas(scheduler: Scheduler, worker: str, keys: Collection[Any], stimulus: str) -> None:
    """Have the scheduler list what a worker has taken in by `hold_data` as replicas of known keys.

    A key that is not in memory any more is dropped by the worker. Uses ``Scheduler.add_keys``, by
    which workers tell of replicas. Should it change: the stream message ``add-keys`` of a worker.
    """
    scheduler.add_keys(worker=worker, keys=list(keys), stimulus_id=stimulus)


def unlist_replicas(
    scheduler: Scheduler,
    keys: Iterable[Any],
    lost: Callable[[str], bool],
    tells: Callable[[str], bool],
    stimulus: str,
) -> dict[str, list[Any]]:
    """Have the scheduler list some workers no more as holders of what others hold, too.

    Nobody fetches from them then, and Dask's active memory manager, which takes all but one replica
    for surplus, does not drop the others. Data without a task stays as it is.

    Parameters
    ----------
    lost
        Tells whether what a worker holds cannot be used.
    tells
        Whether it can tell what it holds, by `list_held`, once it goes on. Another one drops it,
        unless it has a task that needs it: then it stays listed.

    Returns
    -------
    dict
        Worker -> keys of which it is to tell.

    Notes
    -----
    Uses ``Scheduler.remove_replica``, ``Scheduler.tasks`` and the message ``remove-replicas`` to
    workers, as ``ActiveMemoryManagerExtension`` does. Should they change: a policy of that which
    suggests to drop these replicas.
    """
    told: dict[str, list[Any]] = {}
    dropped: dict[str, list[Any]] = {}
    for key in keys:
        state = scheduler.tasks.get(key)
        if state is None or state.run_spec is None:
            continue
        holders = list(state.who_has or ())
        away = [holder for holder in holders if lost(holder.address)]
        needing = {task.processing_on for task in state.waiters or ()}
        for holder in away if len(away) < len(holders) else ():
            if (known := tells(holder.address)) or holder not in needing:
                scheduler.remove_replica(state, holder)
                (told if known else dropped).setdefault(holder.address, []).append(key)
    for address, own in dropped.items():
        message = {"op": "remove-replicas", "keys": own, "stimulus_id": stimulus}
        scheduler.worker_send(address, message)
    return told


def drop_unadopted(scheduler: Scheduler, worker: str, keys: Collection[Any], stimulus: str) -> None:
    """Have a worker drop what it has taken in by `hold_data` and the scheduler has not heard of.

    Uses the message ``free-keys`` to workers. Should it change: see ``Scheduler.worker_send``'s
    callers in distributed.
    """
    message = {"op": "free-keys", "keys": list(keys), "stimulus_id": stimulus}
    scheduler.worker_send(worker, message)


def release_for(scheduler: Scheduler, client: str, keys: Collection[Any], stimulus: str) -> None:
    """Release keys in the name of a connected client, as if its futures were gone.

    Uses ``Scheduler.client_releases_keys``. Should it change: the client releases its futures.
    """
    scheduler.client_releases_keys(list(keys), client, stimulus)


def run_anywhere(tasks: Iterable[TaskState]) -> None:
    """Let tasks that are pinned to workers run on any, if they ever have to run again.

    Uses ``TaskState.loose_restrictions`` and ``worker_restrictions``. Should they change:
    ``Scheduler.set_restrictions``, which replaces the pins.
    """
    for task in tasks:
        if task.worker_restrictions:
            task.loose_restrictions = True


def unrunnable(scheduler: Scheduler) -> set[TaskState]:
    """Return the tasks that wait for a worker that is not there.

    Uses ``Scheduler.unrunnable``. Should it change: the tasks in the state ``no-worker``.
    """
    return set(scheduler.unrunnable)


def start_anywhere(scheduler: Scheduler, tasks: Iterable[TaskState], stimulus: str) -> None:
    """Start `unrunnable` tasks that are pinned to a worker that is gone on any other.

    Uses ``Scheduler.transitions``, and what `run_anywhere` uses. Should it change: resubmit the
    graph without its restrictions.
    """
    for task in tasks:
        if task.worker_restrictions:
            task.loose_restrictions = True
            scheduler.transitions({task.key: "processing"}, stimulus_id=stimulus)


def serves_dashboard(scheduler: Scheduler) -> bool:
    """Tell whether the scheduler serves Dask's dashboard: it is on, and bokeh is installed.

    Uses ``Scheduler.http_application.applications``. Imports nothing: a scheduler that serves the
    dashboard has imported bokeh. Should it change: False, after which fpmdask adds no page.
    """
    return _dashboard_of(scheduler) is not None


def _dashboard_of(scheduler: Scheduler) -> Any:
    """Return the `BokehTornado` that serves Dask's pages, or None."""
    if "distributed.dashboard.scheduler" not in sys.modules:
        return None
    from bokeh.server.tornado import BokehTornado

    served = scheduler.http_application.applications
    return next((each for each in served if isinstance(each, BokehTornado)), None)


def add_dashboard_pages(
    scheduler: Scheduler,
    pages: Mapping[str, Callable[[Scheduler, dict[str, Any], Any], None]],
    menu: Collection[str],
) -> bool:
    """Add pages to the dashboard that a scheduler serves, once; tell whether they were added.

    Parameters
    ----------
    scheduler
        On whose event loop this is called.
    pages
        ``"/path"`` → a function of the scheduler, the variables of Dask's templates and the new
        bokeh document, which it fills.
    menu
        Paths of those that get an entry in the menu of all pages; those that begin with
        ``/individual-`` get one under "More...", and JupyterLab lists them.

    Notes
    -----
    Uses ``BokehApplication`` and the memoised ``template_variables`` of
    ``distributed.dashboard``, ``RoutingApplication.add_application``, and
    ``BokehTornado._applications``, the only one that ``/individual-plots.json`` reads. A second
    bokeh application serves the pages, since tornado's routes of the first one are fixed once it
    is made. Should they change: ``distributed.dashboard.scheduler.applications``, to which pages
    can be added before a scheduler starts, by the preload only.
    """
    dashboard = _dashboard_of(scheduler)
    if dashboard is None or dashboard._applications.keys() & pages.keys():
        return False
    from distributed.dashboard.core import BokehApplication
    from distributed.dashboard.scheduler import template_variables
    from tornado.ioloop import IOLoop

    variables: dict[str, list[Any]] = template_variables(scheduler)
    ours = BokehApplication(pages, scheduler, prefix=dashboard.prefix, template_variables=variables)
    scheduler.http_application.add_application(ours)
    ours.initialize(IOLoop.current())
    ours.start()
    dashboard._applications.update(ours._applications)
    entries = [path.strip("/") for path in menu]
    known, plots = variables["pages"], variables["plots"]
    known += [entry for entry in entries if entry not in known]
    names = (path.strip("/") for path in pages if path.startswith("/individual-"))
    plots += [{"url": name, "name": name.partition("-")[2].replace("-", " ")} for name in names]
    plots.sort(key=lambda plot: str(plot["name"]).lower())
    return True


def add_metrics(scheduler: Scheduler, collector: Callable[[Scheduler], Any]) -> bool:
    """Have the scheduler's ``/metrics`` tell what a collector has, too; tell whether it does.

    Parameters
    ----------
    collector
        Makes a ``prometheus_client`` collector of a scheduler. Its attribute ``server`` is set to
        the scheduler that is asked, where there are several in one process.

    Notes
    -----
    Once per process and collector. Nothing happens where prometheus_client is not installed. Uses
    ``COLLECTORS`` of ``distributed.http.scheduler.prometheus.core``, of which the first request
    makes and registers one each, and ``PrometheusHandler._collectors``, those that it has made.
    Should they change: ``prometheus_client.REGISTRY.register``, for the last scheduler only.
    """
    core = sys.modules.get("distributed.http.scheduler.prometheus.core")
    if core is None or collector in core.COLLECTORS:
        return False
    core.COLLECTORS.append(collector)
    if core.PrometheusHandler._collectors:  # it has been asked before
        made = collector(scheduler)
        core.prometheus_client.REGISTRY.register(made)
        core.PrometheusHandler._collectors = (*core.PrometheusHandler._collectors, made)
    return True


# ---- on workers


def task_of_this_thread() -> Any:
    """Return the key of the task that the calling thread runs, None where it runs none.

    Uses ``distributed.worker.thread_state``. Should it change: ``get_worker``, which raises
    ValueError elsewhere, but does not tell one thread from another.
    """
    return getattr(thread_state, "key", None)


def for_the_task_of_this_thread() -> Callable[[], None]:
    """Return what makes a thread in which it is called one of the calling thread's task.

    `get_worker`, `get_client` and `task_of_this_thread` know the task there: pools of threads do
    not take over context variables. Uses ``distributed.worker.thread_state``. Should it change:
    the context variables alone, which `get_worker` goes by.
    """
    context, state = copy_context(), dict(vars(thread_state))

    def begin() -> None:
        for variable, value in context.items():
            variable.set(value)
        vars(thread_state).update(state)

    return begin


def add_plugin_before_start(worker: Worker, plugin: WorkerPlugin) -> None:
    """Have a worker that is not registered yet set a plugin up, or not start where that fails.

    Uses ``Worker._pending_plugins``, which its argument ``plugins`` fills. Should it change:
    ``Worker.plugin_add``, whose errors the worker survives.
    """
    worker._pending_plugins = (*worker._pending_plugins, plugin)


def offer_resource_before_start(worker: Worker, name: str, amount: float) -> None:
    """Give a worker a resource of which the scheduler hears with its registration.

    Uses ``WorkerState.total_resources`` and ``available_resources``. Should they change:
    ``Worker.set_resources`` once it is registered.
    """
    worker.state.total_resources[name] = amount
    worker.state.available_resources[name] = amount


def memory_limit(worker: Worker) -> int | None:
    """Return the bytes that a worker may use, None or 0 for no limit.

    Uses ``Worker.memory_manager.memory_limit``. Should it change: ``WorkerState.memory_limit`` on
    the scheduler.
    """
    limit: int | None = worker.memory_manager.memory_limit
    return limit


def unmanaged_nbytes(worker: Worker) -> int:
    """Return the bytes of a worker's process that are not Dask's data, as they are now.

    Uses ``Worker.monitor.get_process_memory`` and ``WorkerState.nbytes``. Should they change: the
    resident set size that psutil reports.
    """
    return int(worker.monitor.get_process_memory() - worker.state.nbytes)


def hold_data(worker: Worker, data: Mapping[Any, Any]) -> None:
    """Make values Dask data on a worker; the scheduler hears of it by `adopt_data`. On the loop.

    Uses ``Worker.update_data``, which `Client.scatter` calls. Should it change: the handler
    ``update_data`` of workers.
    """
    worker.update_data(dict(data))


def abort_fetches(worker: Worker, address: str) -> None:
    """End what a worker of Dask's fetches from another one; it asks other holders.

    Uses ``Worker.rpc``, the pool of connections by which results are fetched. Should it change:
    nothing is ended, and what waits goes on when the other worker does, or leaves.
    """
    worker.rpc.remove(address, reason=f"{address} gives no sign of life")


def list_held(worker: Worker, keys: Iterable[Any]) -> None:
    """Have the scheduler list a worker as a holder of some keys, of those that it has.

    Uses the stream message ``add-keys``, by which workers tell of replicas; the scheduler has what
    it knows no more dropped. Should it change: see `list_replicas`.
    """
    held = [key for key in keys if key in worker.data]
    send_to_scheduler(worker, {"op": "add-keys", "keys": held, "stimulus_id": "fpmdask-held"})


def send_to_scheduler(worker: Worker, message: Mapping[str, Any]) -> None:
    """Send a message to the scheduler with the next batch; from any thread of a worker.

    ``message["op"]`` names one of ``Scheduler.stream_handlers``. Uses ``Worker.batched_send``.
    Should it change: `Worker.log_event`, for which the scheduler has handlers, too.
    """
    worker.loop.add_callback(worker.batched_send, dict(message))


async def fetch_whole(worker: Worker, key: Any, peer: str) -> Mapping[Any, Any] | None:
    """Ask another worker for a value, as workers do among themselves.

    Returns
    -------
    mapping or None
        ``{key: value}``, empty where the value is not there. None: the other worker serves as many
        as it may; ask again.

    Raises
    ------
    OSError
        If the other is gone.

    Notes
    -----
    Uses ``distributed.worker.get_data_from_worker``. Should it change: ``Client.gather`` with
    ``direct=True``.
    """
    answer: Any = await get_data_from_worker(worker.rpc, [key], peer, who=worker.address)
    return None if answer["status"] == "busy" else answer["data"]
