"""The worker's side: opens kernels, times them, holds what its runs keep and exchange."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from typing import Any

import cloudpickle
import numpy as np
from dask.sizeof import sizeof
from dask.utils import typename
from distributed import Worker
from distributed.comm.addressing import get_address_host
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.utils import offload

from fpmdask import config
from fpmdask.runtime import protocol
from fpmdask.runtime.dask_private import (
    abort_fetches,
    hold_data,
    list_held,
    memory_limit,
    send_to_scheduler,
    unmanaged_nbytes,
)
from fpmdask.runtime.identity import KernelId, canonical
from fpmdask.runtime.memory import is_much
from fpmdask.runtime.protocol import Prepared, Probe, Published, Replicas
from fpmdask.runtime.remote_errors import describe_error
from fpmdask.runtime.rpc import Call, Notice, answer_calls, drop_notices, take_back, take_notices
from fpmdask.runtime.version import PLUGIN, RECEIVED
from fpmdask.runtime.wire import Packed
from fpmdask.runtime.worker.blas_threads import blas_threads
from fpmdask.runtime.worker.channel import Channels
from fpmdask.runtime.worker.exchange import Exchange
from fpmdask.runtime.worker.fingerprint import fingerprint
from fpmdask.runtime.worker.heap import keep, release, trim
from fpmdask.runtime.worker.offers import Offers
from fpmdask.runtime.worker.peers import Peers
from fpmdask.runtime.worker.serving import Serving
from fpmdask.runtime.worker.space import RunSpace as RunSpace
from fpmdask.timing import (
    FunctionKernel,
    Kernel,
    Scratch,
    WorkerContext,
    as_kernel,
    kernel_factory,
    register_kernel,
    registered_kernels,
)
from fpmdask.tuning import Tuning

logger = logging.getLogger(__name__)

# How often it is looked whether a run goes on, while modules are to be imported for later ones.
IMPORT_SECONDS = 0.1

# Enough for a link's rate to show; 0.1 s at 100 Mbit/s.
PROBE_NBYTES = 1 << 20
PROBE = "fpmdask-probe"


class WorkerSide(WorkerPlugin):
    """fpmdask on one worker.

    Parameters
    ----------
    slots
        Amount of the resource ``fpm`` that the worker gets.
    kernels
        Kernel name → ``"module:attribute"`` of its factory; what is registered on the worker
        already (by a preload) stays.
    tasks
        Modules of the tasks that runs send. They are imported one after the other while no run goes
        on, so that the first run need not wait for the slowest worker's imports.
    tuning
        What `Tuning.to_json` made of the scheduler's.
    """

    name = PLUGIN

    def __init__(
        self,
        slots: int,
        kernels: Mapping[str, str],
        tasks: Sequence[str],
        tuning: Mapping[str, Any],
    ) -> None:
        self.slots, self.tuning = slots, Tuning.from_mapping(tuning)
        self.kernels = dict(kernels)
        self.tasks = tuple(tasks)

    async def setup(self, worker: Worker) -> None:
        """Give the worker its resource and its handlers."""
        # a worker that closes now has nothing to be torn down yet: nothing is awaited below
        await worker.set_resources(fpm=self.slots)
        self.worker = worker
        self.spaces: dict[str, RunSpace] = {}
        self.scratch = Scratch()
        self.peers = Peers(worker, self.tuning.runtime)
        self.serving = Serving(worker, self._offers, lambda: self.channels)
        self.channels = self._listen(worker)
        self._forgetting: asyncio.TimerHandle | None = None
        self._trimming: asyncio.Task[None] | None = None
        known = registered_kernels()
        for name, factory in self.kernels.items():
            if name not in known:
                register_kernel(name, factory)
        self._calls: dict[Call[Any], Callable[..., Any]] = {
            protocol.PREPARE: self.prepare,
            protocol.PIECES: self.serving.by_message,
            protocol.PROBE: self.probe,
            protocol.PUBLISH: self.publish,
            protocol.REPLICATE: self.replicate,
            protocol.TRIM: self.trim,
        }
        self._notices: dict[Notice, Callable[..., None]] = {
            protocol.FORGET: self.forget,
            protocol.WITHDRAW: self.withdraw,
            protocol.WORKER_GONE: self.gone,
            protocol.WORKER_BACK: self.back,
            protocol.WORKER_STOPPED: self.stopped,
            protocol.LIST_AGAIN: self.list_again,
            protocol.COMMAND: self.tell,
            protocol.REFUSED: self.refused,
        }
        answer_calls(worker.handlers, self._calls)
        take_notices(worker.stream_handlers, self._notices, self._refuse)
        worker.metrics[RECEIVED] = self.peers.traffic.metric
        self._importing = asyncio.ensure_future(self._import_tasks())

    async def _import_tasks(self) -> None:
        for module in self.tasks:
            while self.spaces:  # what a run needs is imported by `prepare`
                await asyncio.sleep(IMPORT_SECONDS)
            await asyncio.to_thread(import_module, module)

    async def teardown(self, worker: Worker) -> None:
        """Take the handlers back and drop what runs left."""
        take_back(worker.handlers, self._calls)
        drop_notices(worker.stream_handlers, self._notices)
        worker.metrics.pop(RECEIVED, None)
        for run in list(self.spaces):
            self.forget(run)
        self._keep_scratch()  # no timer is left
        self._importing.cancel()
        if self._trimming is not None:
            self._trimming.cancel()
        if self.channels is not None:
            await self.channels.close()

    # ---- handlers, called by the coordinator and by other workers

    async def prepare(
        self, run: str, kernel: Packed | None = None, tasks: Sequence[str] = ()
    ) -> Prepared:
        """Say who this worker is, open ``kernel`` for ``run`` and import its tasks' modules."""
        answer = Prepared(
            str(self.worker.name),
            self.worker.id,
            fingerprint(self.worker.state.nthreads, memory_limit(self.worker)),
            None if self.channels is None else self.channels.address,
        )
        await self.trim()
        self._keep_scratch()
        space = self.spaces.get(run)
        if space is None:
            space = self.spaces[run] = RunSpace(run, self.scratch, self.tuning)
            space.exchange = Exchange(self.worker, self.peers, run, space.offers, space.cancelled)
            space.offers.offer(PROBE, np.zeros(PROBE_NBYTES, np.uint8))
        try:
            # not by the task when it comes: unpickling it would import on the event loop
            if missing := [module for module in tasks if module not in sys.modules]:
                await asyncio.to_thread(lambda: [*map(import_module, missing)])
            if kernel is not None:
                space.kernel = await offload(self._open, space, kernel)
                answer = replace(answer, kernel=_identity(space.kernel, kernel))
                users, goes_on = isinstance(space.kernel, FunctionKernel), run in self.spaces
                if users and goes_on and not space.keeps_memory:
                    space.keeps_memory = True
                    keep()
        except Exception as error:
            return replace(answer, error=describe_error(error))
        return answer

    async def trim(self) -> None:
        """Give back what malloc keeps where that is much, and tell the scheduler."""
        worker = self.worker
        much = is_much(unmanaged_nbytes(worker), memory_limit(worker))
        if much and await offload(trim):
            worker.monitor.update()
            await worker.heartbeat()

    def forget(self, run: str) -> None:
        """Stop what ``run`` does here at its next check, and drop what it keeps."""
        space = self.spaces.pop(run, None)
        if space is None:
            return
        space.cancel()
        if space.keeps_memory:
            release()
            self._trimming = asyncio.ensure_future(self.trim())
        if not self.spaces:
            self.peers.forget()
            # a new Scratch, since a call that goes on may still write to its arrays of the old one
            self._keep_scratch()
            loop = asyncio.get_running_loop()
            kept = self.tuning.runtime.scratch_seconds
            self._forgetting = loop.call_later(kept, self._drop_scratch)

    async def probe(self, run: str, peer: str, channel: tuple[str, int]) -> Probe:
        """Return what a byte takes that comes from another worker."""

        def receive() -> float | None:
            target = np.empty(PROBE_NBYTES, np.uint8)
            try:
                with self.peers.channel(peer, channel) as opened:
                    for nbytes in (1, PROBE_NBYTES):  # the first opens the way
                        began = time.perf_counter()
                        wanted = [(PROBE, ((0, nbytes),), 0, None)]
                        opened.ask({"run": run, "reader": self.worker.address, "wanted": wanted})
                        if "dtypes" not in opened.answer():
                            return None  # the run is over there
                        opened.receive(target[:nbytes])
            except OSError:
                return None
            return (time.perf_counter() - began) / PROBE_NBYTES

        return Probe(await asyncio.to_thread(receive))  # Dask has one thread to offload to

    def tell(self, run: str, to: str, command: Mapping[str, Any]) -> None:
        """Pass on a command of the coordinator to a step of ``run``, which checks it."""
        space = self.spaces.get(run)
        if space is not None:
            space.notes(to).put(command)

    def refused(self, run: str, reason: str) -> None:
        """Log why the coordinator has not taken a message of a step of this worker."""
        logger.error("run %s: %s", run, reason)

    def _refuse(self, _: str, run: str, error: Exception) -> None:
        """Tell the coordinator that a message of its was not taken."""
        reason = f"worker {self.worker.name}: {error}"
        send_to_scheduler(self.worker, protocol.REFUSED_BY_WORKER.message(run=run, reason=reason))

    def _listen(self, worker: Worker) -> Channels | None:
        """Offer channels where the cluster's protocol is that of plain or encrypted sockets."""
        protocol, _, _ = worker.address.partition("://")
        if protocol not in ("tcp", "tls") or not config.setting("channels"):
            return None
        security = worker.security.get_listen_args("worker")
        context = security["ssl_context"] if protocol == "tls" else None
        try:
            host = get_address_host(worker.address)
            return Channels(host, self.serving.by_channel, context, self.tuning.runtime)
        except OSError:
            return None

    def gone(self, worker: str) -> None:
        """Ask a worker that has left no more, and wait for it no longer."""
        self.peers.gone(worker)
        for space in list(self.spaces.values()):
            space.offers.left(worker)

    def back(self, worker: str) -> None:
        """Ask a worker again: one has come to the address of one that had left."""
        self.peers.back(worker)
        for space in list(self.spaces.values()):
            space.offers.joined(worker)

    def stopped(self, worker: str) -> None:
        """End what Dask fetches from a worker that gives no sign of life; others may hold it."""
        abort_fetches(self.worker, worker)

    def list_again(self, keys: Sequence[Any]) -> None:
        """Tell the scheduler of results that it has not listed while this worker was stopped."""
        list_held(self.worker, keys)

    def _offers(self, run: str) -> Offers | None:
        space = self.spaces.get(run)
        return None if space is None else space.offers

    async def publish(self, run: str, chunks: Sequence[tuple[Any, int, Any]]) -> Published | None:
        """Make chunks of parts of ``run`` Dask data: (Dask key, part, bounds of the chunk).

        They are copied in a thread. The parts are kept until `forget`, in case they must be
        published again under other keys.
        """
        space = self.spaces.get(run)
        if space is None:
            return None  # the run is over: nobody would free them

        def copied() -> dict[Any, Any]:
            return {key: space.parts[part].chunk(at) for key, part, at in chunks}

        try:
            data = await asyncio.to_thread(copied)
        except KeyError:
            if space.cancelled.is_set():
                return None
            raise
        if space.cancelled.is_set() or not space.withdrawn.isdisjoint(data):  # meanwhile
            return None
        hold_data(self.worker, data)
        return Published(
            nbytes={key: int(sizeof(value)) for key, value in data.items()},
            types={key: typename(type(value)) for key, value in data.items()},
        )

    def withdraw(self, run: str, keys: Sequence[Any]) -> None:
        """Publish no chunk of ``run`` under these keys any more: nobody would free it."""
        space = self.spaces.get(run)
        if space is not None:
            space.withdrawn.update(keys)

    def replicate(self, names: Sequence[tuple[Any, Any]]) -> Replicas:
        """List data under further keys: (new key, key that is here); return the new keys."""
        here: Mapping[Any, Any] = self.worker.data
        data = {new: here[key] for new, key in names if key in here and new not in here}
        hold_data(self.worker, data)
        return Replicas([*data])

    # ---- for tasks

    def space(self, run: str) -> RunSpace | None:
        """Return the space of ``run``, or None when the run is over."""
        return self.spaces.get(run)

    def blas_threads(self) -> AbstractContextManager[None]:
        """Let BLAS use the worker's threads, and no more, for the time of one task."""
        return blas_threads.limited(self.worker.state.nthreads)

    def _keep_scratch(self) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
            self._forgetting = None

    def _drop_scratch(self) -> None:
        self.scratch = Scratch()

    def _open(self, space: RunSpace, kernel: Mapping[str, Any]) -> Kernel:
        context = WorkerContext(
            name=str(self.worker.name),
            nthreads=self.worker.state.nthreads,
            scratch=space.scratch,
            tuning=space.tuning,
        )
        code = kernel.get("code")
        if code is not None:
            return as_kernel(cloudpickle.loads(code), context, implementation=kernel["digest"])
        name, factory = kernel["name"], kernel.get("factory")
        if factory is not None and name not in registered_kernels():
            register_kernel(name, factory)  # of an application that came after the worker
        return kernel_factory(name)(context, **kernel["parameters"])


def _identity(kernel: Kernel, packed: Mapping[str, Any]) -> KernelId:
    """Return what a kernel is; the digest of user's code tells it from others of its name."""
    name, implementation, digest = kernel.name, kernel.implementation, packed.get("digest")
    if digest == "":  # the user has named it
        name = packed["name"]
    elif digest is not None and implementation != digest:
        # two classes, or one changed since, may say the same of themselves
        implementation = f"{implementation} {digest}"
    return KernelId(name, implementation, canonical(kernel.parameters))
