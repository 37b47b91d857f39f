"""The worker's side: opens kernels, times them, holds a run's parts, hands out pieces of arrays."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from threading import Lock
from typing import Any

import cloudpickle
import numpy as np
from dask.utils import typename
from distributed import Worker
from distributed.comm.addressing import get_address_host
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.protocol import to_serialize
from distributed.utils import offload

from fpmdask.coordinator import config
from fpmdask.coordinator.blas_threads import blas_threads
from fpmdask.coordinator.channel import Channel, Channels, Scattered
from fpmdask.coordinator.fingerprint import fingerprint
from fpmdask.coordinator.heap import SUSPICIOUS, trim
from fpmdask.coordinator.identity import canonical
from fpmdask.coordinator.installation import PLUGIN
from fpmdask.coordinator.recent import Recent
from fpmdask.coordinator.remote_errors import describe_error
from fpmdask.coordinator.space import RELAY_SECONDS, RELAYED
from fpmdask.coordinator.space import RunSpace as RunSpace
from fpmdask.errors import PartitionError
from fpmdask.runtime.dask_private import hold_data, memory_limit, unmanaged_nbytes
from fpmdask.timing import (
    Kernel,
    Scratch,
    WorkerContext,
    as_kernel,
    kernel_factory,
    register_kernel,
    registered_kernels,
)
from fpmdask.tuning import Tuning

# How often it is looked whether a run goes on, while modules are to be imported for later ones.
IMPORT_SECONDS = 0.1

# Enough for a link's rate to show; 0.1 s at 100 Mbit/s.
PROBE_NBYTES = 1 << 20
PROBE = "fpmdask-probe"
# So many of the peers that were lost last are known as such while runs go on.
MOST_PEERS = 1 << 12
# Cutting more than this many bytes of pieces leaves the event loop for a thread.
OFFLOAD_NBYTES = 1 << 20


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
        self.worker = worker
        self.spaces: dict[str, RunSpace] = {}
        self.scratch = Scratch()
        self._asked: dict[str, set[asyncio.Task[Any]]] = {}
        self._gone = Recent(MOST_PEERS)  # since the first of the runs that go on
        self.unreachable = Recent(MOST_PEERS)  # by channels, for as long
        self._open_channels: dict[str, set[Channel]] = {}  # no peer without one
        self._opening = Lock()  # guards it: channels are opened in threads
        self.channels = self._listen(worker)
        self._forgetting: asyncio.TimerHandle | None = None
        known = registered_kernels()
        for name, factory in self.kernels.items():
            if name not in known:
                register_kernel(name, factory)
        worker.handlers.update(
            fpmdask_prepare=self.prepare,
            fpmdask_pieces=self.pieces,
            fpmdask_probe=self.probe,
            fpmdask_publish=self.publish,
            fpmdask_replicate=self.replicate,
            fpmdask_trim=self.trim,
        )
        worker.stream_handlers["fpmdask-forget"] = self.forget
        worker.stream_handlers["fpmdask-gone"] = self.gone
        worker.stream_handlers["fpmdask-back"] = self.back
        worker.stream_handlers["fpmdask-tell"] = self.tell
        await worker.set_resources(fpm=self.slots)
        self._importing = asyncio.ensure_future(self._import_tasks())

    async def _import_tasks(self) -> None:
        for module in self.tasks:
            while self.spaces:  # what a run needs is imported by `prepare`
                await asyncio.sleep(IMPORT_SECONDS)
            await asyncio.to_thread(import_module, module)

    async def teardown(self, worker: Worker) -> None:
        """Take the handlers back and drop what runs left."""
        for handler in ("prepare", "pieces", "probe", "publish", "replicate", "trim"):
            worker.handlers.pop(f"fpmdask_{handler}", None)
        for message in ("forget", "gone", "back", "tell"):
            worker.stream_handlers.pop(f"fpmdask-{message}", None)
        for run in list(self.spaces):
            self.forget(run)
        self._keep_scratch()  # no timer is left
        self._importing.cancel()
        if self.channels is not None:
            await self.channels.close()

    # ---- handlers, called by the coordinator and by other workers

    async def prepare(
        self, run: str, kernel: dict[str, Any] | None = None, tasks: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Say who this worker is, open ``kernel`` for ``run`` and import its tasks' modules."""
        limit = memory_limit(self.worker)
        answer: dict[str, Any] = {
            "name": str(self.worker.name),
            "start": self.worker.id,
            "fingerprint": fingerprint(self.worker.state.nthreads, limit).to_json(),
            "channel": None if self.channels is None else self.channels.address,
        }
        await self.trim()
        self._keep_scratch()
        space = self.spaces.setdefault(run, RunSpace(run, self.scratch, self.tuning))
        space.offered[PROBE] = np.zeros((1, PROBE_NBYTES), np.uint8)
        try:
            # not by the task when it comes: unpickling it would import on the event loop
            if missing := [module for module in tasks if module not in sys.modules]:
                await asyncio.to_thread(lambda: [*map(import_module, missing)])
            if kernel is not None:
                space.kernel = await offload(self._open, space, kernel)
                answer["kernel"] = _identity(space.kernel, kernel.get("digest"))
        except Exception as error:
            answer["error"] = describe_error(error)
        return answer

    async def trim(self) -> None:
        """Give back what malloc keeps where that is much, and tell the scheduler."""
        worker = self.worker
        limit = memory_limit(worker)
        if limit and unmanaged_nbytes(worker) > SUSPICIOUS * limit and await offload(trim):
            worker.monitor.update()
            await worker.heartbeat()

    def forget(self, run: str) -> None:
        """Stop what ``run`` does here at its next check, and drop what it keeps."""
        space = self.spaces.pop(run, None)
        if space is None:
            return
        space.cancel()
        if not self.spaces:
            with self._opening:
                peers = {*self._asked, *self._open_channels}
            for peer in peers:
                self._stop_asking(peer)
            self._gone.clear()
            self.unreachable.clear()
            # a new Scratch, since a call that goes on may still write to its arrays of the old one
            self._keep_scratch()
            loop = asyncio.get_running_loop()
            kept = self.tuning.runtime.scratch_seconds
            self._forgetting = loop.call_later(kept, self._drop_scratch)

    async def probe(self, run: str, peer: str, channel: tuple[str, int]) -> float | None:
        """Return the seconds per byte that come from another worker, None where none come."""

        def receive() -> float | None:
            target = np.empty((1, PROBE_NBYTES), np.uint8)
            try:
                with self.channel(peer, (channel[0], channel[1])) as opened:
                    for columns in (1, PROBE_NBYTES):  # the first opens the way
                        began = time.perf_counter()
                        wanted = (PROBE, (0, 1, 0, columns), target.shape)
                        opened.ask(run, [wanted])
                        if "dtypes" not in opened.answer():
                            return None
                        opened.receive(target[:, :columns])
            except OSError:
                return None
            return (time.perf_counter() - began) / PROBE_NBYTES

        return await asyncio.to_thread(receive)  # Dask has one thread to offload to

    def tell(self, run: str, to: str, note: Any) -> None:
        """Pass on what the coordinator tells a step of ``run``."""
        space = self.spaces.get(run)
        if space is not None:
            space.notes(to).put(note)

    async def pieces(
        self, run: str, wanted: Sequence[tuple[Any, Sequence[int], Sequence[int]]]
    ) -> dict[str, Any]:
        """Return slices of one- or two-dimensional chunks that this worker holds.

        ``wanted`` lists (key, (row start, row stop, column start, column stop), shape of the
        chunk); a one-dimensional chunk is one row. The answer is either ``pieces`` in that order,
        or ``missing``, the keys that are not here, or ``unusable``, why a chunk is not what its
        array says.
        """
        refusal, cut = self._cut(run, wanted)
        if refusal:
            return refusal

        def contiguous() -> list[np.ndarray]:
            return [np.ascontiguousarray(piece) for piece in cut]

        large = sum(piece.nbytes for piece in cut) > OFFLOAD_NBYTES
        arrays = await offload(contiguous) if large else contiguous()
        return {"pieces": [to_serialize(array) for array in arrays]}

    def _cut(self, run: str, wanted: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
        """Return why there are no pieces, or views of what there is; on the event loop."""
        space = self.spaces.get(run)  # none where it only holds chunks
        data: Mapping[Any, Any] = self.worker.data
        given = {} if space is None else space.offered  # threads add to it meanwhile
        offered = {key: given[key] for key, _, _ in wanted if given.get(key) is not None}
        for key, at, _ in wanted:
            if space is not None and key[0] == RELAYED and not space.is_ready(key, at):
                offered.pop(key, None)  # it is there, but not all of this slice has arrived
        missing = [key for key, _, _ in wanted if key not in offered and key not in data]
        if missing:
            return {"missing": missing}, []
        try:
            return {}, [
                _slice(offered[key], key, at, shape)
                if key in offered
                else _piece(key, data[key], at, shape)
                for key, at, shape in wanted
            ]
        except PartitionError as error:
            return {"unusable": str(error)}, []

    def _listen(self, worker: Worker) -> Channels | None:
        """Offer channels where the cluster's protocol is that of plain or encrypted sockets."""
        protocol, _, _ = worker.address.partition("://")
        if protocol not in ("tcp", "tls") or not config.setting("channels"):
            return None
        security = worker.security.get_listen_args("worker")
        context = security["ssl_context"] if protocol == "tls" else None
        try:
            host = get_address_host(worker.address)
            return Channels(host, self._cut_for_channel, context, self.tuning.runtime)
        except OSError:
            return None

    def _cut_for_channel(
        self, run: str, wanted: Sequence[Any]
    ) -> tuple[dict[str, Any], Iterable[np.ndarray | Scattered]]:
        """Return the header and the pieces for a request; in a thread."""

        async def cut() -> tuple[dict[str, Any], list[Any]]:
            if run not in self.spaces:
                return {"missing": [key for key, _, _ in wanted]}, []
            return self._cut(run, wanted)

        space = self.spaces.get(run)
        for key, at, _ in wanted:
            if space is None or key[0] != RELAYED:
                continue
            assert self.channels is not None  # through them this is asked
            with self.channels.waiting():
                arrived = space.wait_for(key, at, RELAY_SECONDS)
            if arrived is None:
                return {"missing": [key]}, []
        loop: Any = self.worker.loop
        refusal, pieces = asyncio.run_coroutine_threadsafe(cut(), loop.asyncio_loop).result()
        if refusal:
            return refusal, []
        dtypes = [piece.dtype.str for piece in pieces]
        return {"dtypes": dtypes}, map(_with_rows, pieces)  # each when it is sent

    @contextmanager
    def channel(self, peer: str, address: tuple[str, int]) -> Iterator[Channel]:
        """Open a channel to another worker, which `gone` shuts; in a thread.

        Raises
        ------
        OSError
            If it is gone, or cannot be reached.
        """
        if peer in self._gone:
            raise ConnectionError(f"{peer} has left the cluster")
        security = self.worker.security.get_connection_args("worker")
        context = security["ssl_context"] if self.worker.address.startswith("tls://") else None
        opened = Channel(address, context, self.tuning.runtime)
        with self._opening:
            self._open_channels.setdefault(peer, set()).add(opened)
        try:
            if peer in self._gone:  # meanwhile: `gone` has not shut this one
                raise ConnectionError(f"{peer} has left the cluster")
            yield opened
        finally:
            with self._opening:
                self._open_channels[peer].discard(opened)
                if not self._open_channels[peer]:
                    del self._open_channels[peer]
            opened.close()

    async def ask(
        self, peer: str, seconds: float, run: str, wanted: Sequence[Any]
    ) -> dict[str, Any] | None:
        """Return what `pieces` of another worker answers, None where it is gone or closing.

        Nor is it asked where the run is over: nobody would stop that if it is gone.
        """
        if peer in self._gone or run not in self.spaces:
            return None
        asking = asyncio.ensure_future(self.worker.rpc(peer).fpmdask_pieces(run=run, wanted=wanted))
        self._asked.setdefault(peer, set()).add(asking)
        try:
            done, _ = await asyncio.wait([asking], timeout=seconds)
            if not done or asking.cancelled() or isinstance(asking.exception(), OSError):
                return None
            answer: dict[str, Any] | None = asking.result()
            return answer
        finally:
            asking.cancel()
            others = self._asked.get(peer, set())
            others.discard(asking)
            if not others:
                self._asked.pop(peer, None)

    def gone(self, worker: str) -> None:
        """Ask a worker that has left no more: a new connection is tried for half a minute."""
        self._gone.add(worker)
        self._stop_asking(worker)

    def back(self, worker: str) -> None:
        """Ask a worker again: one has come to the address of one that had left."""
        self._gone.discard(worker)
        self.unreachable.discard(worker)

    def _stop_asking(self, peer: str) -> None:
        for asking in self._asked.pop(peer, ()):
            asking.cancel()
        with self._opening:
            opened = [*self._open_channels.get(peer, ())]
        for channel in opened:
            channel.shut()

    def publish(self, run: str, chunks: Sequence[tuple[Any, int, Any]]) -> dict[str, Any] | None:
        """Make chunks of parts of ``run`` Dask data: (Dask key, part, bounds of the chunk).

        The parts are kept until `forget`, in case they must be published again under other keys.
        """
        space = self.spaces.get(run)
        if space is None:
            return None  # the run is over: nobody would free them
        data: dict[Any, Any] = {key: space.parts[part].chunk(at) for key, part, at in chunks}
        hold_data(self.worker, data)
        return {
            "nbytes": {key: int(value.nbytes) for key, value in data.items()},
            "types": {key: typename(type(value)) for key, value in data.items()},
        }

    def replicate(self, names: Sequence[tuple[Any, Any]]) -> list[Any]:
        """List data under further keys: (new key, key that is here); return the new keys."""
        here: Mapping[Any, Any] = self.worker.data
        data = {new: here[key] for new, key in names if key in here and new not in here}
        hold_data(self.worker, data)
        return [*data]

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
        return kernel_factory(kernel["name"])(context, **kernel["parameters"])


def checked_chunk(key: Any, chunk: Any, shape: Sequence[int]) -> np.ndarray:
    """Return ``chunk``, refusing what is not the NumPy array that its dask array describes.

    Raises
    ------
    PartitionError
        If it is something else, or of another shape.
    """
    if not isinstance(chunk, np.ndarray) or isinstance(chunk, np.ma.MaskedArray):
        raise PartitionError(
            f"chunk {key} is a {typename(type(chunk))}; make it a NumPy array (map_blocks with "
            "numpy.asarray, toarray or filled)"
        )
    if chunk.dtype.hasobject:
        raise PartitionError(
            f"chunk {key} has dtype {chunk.dtype}, Python objects; convert it with astype"
        )
    if chunk.shape != tuple(shape):
        raise PartitionError(
            f"chunk {key} has the shape {chunk.shape}, its dask array says {tuple(shape)}; give "
            "map_blocks the right chunks"
        )
    return chunk


def _slice(value: Any, key: Any, at: Sequence[int], shape: Sequence[int]) -> Any:
    """Return a slice of what a run offers."""
    if isinstance(value, np.ndarray):
        return _piece(key, value, at, shape)
    _, _, low, high = at
    return value.piece(low, high)


def _piece(key: Any, value: Any, at: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """Return a slice of a chunk, a one-dimensional one being one row."""
    row0, row1, column0, column1 = at
    block = checked_chunk(key, value, shape)
    return (block if block.ndim == 2 else block.reshape(1, -1))[row0:row1, column0:column1]


def _with_rows(piece: Any) -> np.ndarray | Scattered:
    """Return a piece as an array whose rows are contiguous, unless it is a scattered row."""
    if isinstance(piece, Scattered):
        return piece
    if isinstance(piece, np.ndarray) and piece.strides[1] == piece.itemsize:
        return piece
    return np.ascontiguousarray(piece)


def _identity(kernel: Kernel, digest: str | None) -> dict[str, str]:
    """Return the fields of the kernel's `KernelId`; ``digest`` is that of the code that it is."""
    implementation = kernel.implementation
    if digest is not None and implementation != digest:
        # two classes, or one changed since, may say the same of themselves
        implementation = f"{implementation} {digest}"
    return {
        "name": kernel.name,
        "implementation": implementation,
        "parameters": canonical(kernel.parameters),
    }
