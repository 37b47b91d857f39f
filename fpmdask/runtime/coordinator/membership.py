"""Which workers take part in a run: they are leased, prepared, join, leave, and are given up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distributed.core import Status

from fpmdask import config
from fpmdask.errors import CoordinatorError, NoWorkersError
from fpmdask.models import PiecewiseLinearModel
from fpmdask.runtime.coordinator.busy import LOOK_SECONDS, Occupied, occupied
from fpmdask.runtime.identity import KernelId, WorkerIdentity
from fpmdask.runtime.patience import TOLD_SECONDS
from fpmdask.runtime.protocol import (
    FORGET,
    PREPARE,
    WORKER_BACK,
    WORKER_GONE,
    Prepared,
    Unprepared,
)

if TYPE_CHECKING:
    from fpmdask.runtime.coordinator.context import RunContext

PREPARE_SECONDS = 30.0
STARTING = "has not finished starting"
CLOSING = "is closing"
ENDING = {Status.closing, Status.closing_gracefully, Status.closed}
GONE = "left the cluster"
TAKEN = "used, or waited for, by another run"
# A worker that joins is asked again after so long whether it is ready and free.
JOIN_SECONDS = 0.1


class KernelFailed(CoordinatorError):
    """A step raised on a worker; ``error`` is the exception as plain data."""

    def __init__(self, message: str, error: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.error = dict(error)


class Membership:
    """The workers of one run.

    Attributes
    ----------
    workers : dict
        Address → `WorkerIdentity` of those that take part, in worker order.
    left_out : dict
        Name → why the worker takes no part, or has lost what it did and came back.
    kernel_ids, channels : dict
        Address → the kernel that was prepared; host and port.
    errors : dict
        Address → what the kernel raised when it was opened.
    prepared : set of str
        Those that know of the run.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._coordinator, self._scheduler = context.coordinator, context.scheduler
        self.workers: dict[str, WorkerIdentity] = {}
        self.left_out: dict[str, str] = {}
        self.kernel_ids: dict[str, KernelId] = {}
        self.channels: dict[str, tuple[str, int]] = {}
        self.errors: dict[str, Mapping[str, Any]] = {}
        self.prepared: set[str] = set()
        self._kernel: dict[str, Any] | None = None
        self._names: dict[str, str] = {}
        self._acquired = asyncio.Event()
        self._preparing: dict[str, asyncio.Task[Any]] = {}
        self._overdue: set[str] = set()
        self._lost_names: set[str] = set()
        self._shunned: set[str] = set()

    def name(self, address: str) -> str:
        """Return the name of a worker, also of one that is gone."""
        known = self._scheduler.workers.get(
            address
        ) or self._coordinator.known_workers.identities.get(address)
        if known is not None:
            self._names[address] = str(known.name)
        return self._names.get(address, address)

    async def hold(self, wanted: Sequence[str]) -> set[str]:
        """Wait until no other run uses some workers, nor will until this one ends; return them.

        Without those that have left or are stuck. A run within another one uses the workers of
        that, and those that have joined since.
        """
        for address in wanted:
            self.name(address)  # to be remembered when it is gone
        if self._context.lease != self._context.run:
            return await self._coordinator.leasing.take_within(
                self._context.lease, wanted, self._context.patience
            )
        if busy := self._coordinator.leasing.leases.busy(wanted):
            self._context.emit(
                "waiting", workers=[self.name(a) for a in busy], runs=sorted({*busy.values()})
            )
        return await self._coordinator.leasing.take(self._context.run, wanted)

    async def acquire(self, kernel: dict[str, Any] | None) -> None:
        """Wait for the leases of the wanted workers, and prepare them with ``kernel``.

        Raises
        ------
        CoordinatorError
            If a named worker is not there, or no worker can take part.
        KernelFailed
            If the kernel cannot be opened on any worker.
        """
        if kernel is not None and (
            factory := self._context.app.kernels.get(kernel.get("name", ""))
        ):
            kernel = {**kernel, "factory": factory}
        self._kernel = kernel
        wanted = self.candidates()
        held = await self.hold(wanted)
        present = [address for address in wanted if address in held]
        for address in wanted:
            if address not in held:
                self.leave_out(address, why := self._why_not(address))
                if why == TAKEN:
                    self._context.steps.background(self.worker_joined(address))
        present = await self._with_free_threads(present)
        answers = await asyncio.gather(*(self._introduce(address) for address in present))
        for address, answer in zip(present, answers, strict=True):
            if isinstance(answer, str):
                self.leave_out(address, answer)
                if answer == STARTING:
                    self._context.steps.background(self.worker_joined(address))
            elif address not in self._scheduler.workers:
                self.leave_out(address, self._why_not(address))
            else:
                self.workers[address] = answer
        self._context.steps.watch()
        if not self.workers:
            if self.errors:
                raise self.kernel_failure("the kernel cannot be opened on any worker")
            reasons = "; ".join(f"{name}: {why}" for name, why in self.left_out.items())
            raise CoordinatorError(f"no worker can take part ({reasons}); start others, or wait")
        self._acquired.set()

    async def _with_free_threads(self, present: Sequence[str]) -> list[str]:
        """Return the workers that are not busy with tasks of others, for which a while is waited.

        Not for those that were seen busy with the same task for so long already. The others are
        left out and take part once they are free; where all are busy, the run waits.
        """
        states, began, told = self._scheduler.workers, time.monotonic(), False
        patience = config.seconds("busy-patience")
        while True:
            here = {address: states[address] for address in present if address in states}
            now = time.monotonic()
            busy = self._coordinator.known_workers.busy.seen(here.values(), now)
            waited = now - began
            least = min((max(waited, seen) for _, seen in busy.values()), default=0.0)
            if not busy or (least >= patience and len(busy) < len(here)):
                break
            if waited >= TOLD_SECONDS and not told:
                told = True
                self.emit_busy(busy)
            await asyncio.sleep(LOOK_SECONDS)
        for address, (found, _) in busy.items():
            reason = f"busy with {found.task}, for {found.seconds:g} s when last heard of"
            self.leave_out(address, reason)
            self._context.steps.background(self._take_in_when_free(address))
        return [address for address in present if address not in busy]

    async def _take_in_when_free(self, address: str) -> None:
        """Have a worker that was busy take part once a thread of it is free; its lease is held."""
        while (state := self._scheduler.workers.get(address)) is not None and occupied(state):
            await asyncio.sleep(LOOK_SECONDS)
            if self._context.closed:
                return
        await self._acquired.wait()
        answer = await self._introduce(address)
        if isinstance(answer, WorkerIdentity):
            self._take_in(address, answer)

    def _take_in(self, address: str, identity: WorkerIdentity) -> None:
        """Have a worker take part from now on, unless it or the run is over."""
        if self._context.closed or address not in self._scheduler.workers:
            return
        self.workers[address] = identity
        name = self.name(address)
        if name in self._lost_names:  # a nanny starts a worker again under the same name
            self.left_out[name] = f"{self.left_out[name]}, and came back"
        else:
            self.left_out.pop(name, None)
        self._context.emit("joined", worker=name)
        self._context.steps.post(("joined", address))

    def _why_not(self, address: str) -> str:
        if address not in self._scheduler.workers:
            return GONE
        run = self._coordinator.leasing.leases.stuck.get(address)
        return TAKEN if run is None else f"still occupied by a call of run {run}"

    def candidates(self) -> list[str]:
        """Return the addresses of the workers that the run would use now, in worker order.

        Raises
        ------
        CoordinatorError
            If a named worker is not there, or there is none.
        """
        states = self._scheduler.workers
        names = self._context.spec.get("workers")
        if not states:
            raise NoWorkersError(
                "no worker is connected; start some (client.wait_for_workers waits for them)"
            )
        if names is None:
            return sorted(states, key=lambda a: (len(str(states[a].name)), str(states[a].name)))
        by_name = {str(state.name): address for address, state in states.items()}
        unknown = [name for name in names if name not in by_name and name not in states]
        if unknown:
            raise CoordinatorError(
                f"no worker {', '.join(unknown)} in the cluster; connected are: "
                f"{', '.join(by_name) or 'none'}"
            )
        return list(dict.fromkeys(by_name.get(name, name) for name in names))

    async def _prepare(self, address: str) -> Prepared | str:
        """Have a worker open the kernel; return its answer, or why there is none."""
        try:
            answer = await PREPARE.ask(
                self._scheduler.rpc(address),
                run=self._context.run,
                kernel=self._kernel,
                tasks=self._context.app.worker,
            )
        except OSError as error:
            return f"did not answer: {error!r}"
        if answer is None:  # what Dask answers where there is no such handler
            state = self._scheduler.workers.get(address)
            return CLOSING if state is None or state.status in ENDING else STARTING
        if isinstance(answer, Unprepared):
            return answer.unusable
        self.prepared.add(address)
        if self._context.closed:
            self.forget()
        return answer

    async def _introduce(self, address: str) -> WorkerIdentity | str:
        """Return who a worker is, ready for the kernel, or why it cannot take part."""
        # it goes on when nobody waits any more: the worker must be told then that the run is over
        preparing = self._preparing[address] = self._coordinator.beside(self._prepare(address))
        liveness = self._coordinator.known_workers.liveness
        try:
            async with asyncio.timeout(PREPARE_SECONDS):
                await liveness.answer(address, asyncio.wait([preparing]), "open the kernel")
        except TimeoutError as stopped:
            return str(stopped) or f"has not opened the kernel within {PREPARE_SECONDS:g} s"
        if preparing.cancelled():
            return GONE
        answer = preparing.result()
        if isinstance(answer, str):
            return answer
        identity = WorkerIdentity(answer.name, answer.fingerprint, answer.start)
        if address in self._scheduler.workers:  # it may have left: nobody would drop this
            self._coordinator.known_workers.identities[address] = identity
        if answer.error is not None:
            self.errors[address] = answer.error
            return f"{answer.error['type']}: {answer.error['message']}"
        if answer.channel is not None:
            host, port = answer.channel
            self.channels[address] = (host, port)
        if answer.kernel is not None:
            self.kernel_ids[address] = answer.kernel
        return identity

    def leave_out(self, address: str, reason: str) -> None:
        """Note that a worker takes no further part."""
        self.workers.pop(address, None)
        self.left_out[self.name(address)] = reason
        self._context.emit("left out", worker=self.name(address), reason=reason)

    def give_up_on(self, address: str, reason: str) -> None:
        """Leave out a worker whose call does not return; it gets no work until that returns."""
        self._overdue.add(address)
        self.leave_out(address, reason)

    def why_left(self, address: str) -> str:
        """Return which worker has left, or was given up, and why."""
        name = self.name(address)
        return f"{name} {self.left_out.get(name, GONE)}"

    def shun(self, address: str) -> None:
        """Have the run's workers ask one that hangs no more, and end what they wait for.

        Also if it goes on: what it holds is recomputed elsewhere, and only a worker that starts at
        its address is asked again.
        """
        self._shunned.add(address)
        self._tell_prepared(WORKER_GONE.message(worker=address))

    @property
    def any_shunned(self) -> bool:
        """Whether what some worker holds cannot be used."""
        return bool(self._shunned)

    def is_lost(self, address: str) -> bool:
        """Tell whether what a worker holds cannot be used by the run."""
        return address in self._shunned or self._coordinator.known_workers.liveness.has_stopped(
            address
        )

    def worker_back(self, address: str) -> None:
        """Hook: a worker has come; it may be asked again if one of this address had left."""
        self._shunned.discard(address)
        self._tell_prepared(WORKER_BACK.message(worker=address))

    def worker_left(self, address: str) -> None:
        """Hook: a worker is gone; who waits for an answer of it need not."""
        if address in self._preparing:
            self._preparing.pop(address).cancel()
        self.channels.pop(address, None)
        self.shun(address)
        if address in self.workers:
            self.leave_out(address, GONE)
        if address in self.prepared:  # one that was left out may hold a part of the result
            if (name := self.name(address)) in self.left_out:
                self._lost_names.add(name)
            self._context.steps.post(("left", address))

    async def worker_joined(self, address: str) -> None:
        """Hook: a worker has come; it takes part from the next round."""
        wanted = self._context.spec.get("workers")
        if wanted is not None and not {self.name(address), address} & set(wanted):
            return  # a named worker may be restarted, under another address
        await self._acquired.wait()
        give_up = time.monotonic() + PREPARE_SECONDS
        answer: WorkerIdentity | str = STARTING
        while answer == STARTING and time.monotonic() < give_up and not self._context.closed:
            await asyncio.sleep(JOIN_SECONDS)
            if address not in self._scheduler.workers or address in self.workers:
                return
            answer = await self._introduce(address)
        if (
            isinstance(answer, str)
            or self._context.closed
            or address not in self._scheduler.workers
        ):
            return
        leases = self._coordinator.leasing.leases
        while address not in leases.held_by(self._context.lease) and not leases.extend(
            self._context.lease, address
        ):
            await asyncio.sleep(JOIN_SECONDS)  # another run uses it, or waits for it
            if self._context.closed or address not in self._scheduler.workers:
                return
        self._take_in(address, answer)

    def kernel_failure(self, what: str) -> KernelFailed:
        """Return the exception that tells the client what the kernel raised, and where."""
        address, error = next(iter(self.errors.items()))
        where = self.name(address)
        return KernelFailed(f"{what}; on {where}: {error['type']}: {error['message']}", error)

    def model_of(self, address: str) -> PiecewiseLinearModel | None:
        """Return the worker's model of the prepared kernel, if it has one."""
        if address not in self.workers:
            return None  # it has left at this moment
        known = self._coordinator.library.find(self.kernel_ids[address], self.workers[address])
        return None if known is None else known[0]

    def end(self) -> None:
        """Tell all the workers that the run is over, and give the leases back."""
        self._acquired.set()  # who waits for it has nothing to join
        self.forget()
        ends = self._context.lease == self._context.run
        self._coordinator.leasing.give_back(
            self._context.lease, self._overdue, self._context.patience if ends else None
        )

    def forget(self) -> None:
        """Tell the workers that the run is over: they stop what they do for it, and drop it."""
        self._tell_prepared(FORGET.message(run=self._context.run))
        self.prepared.clear()

    def _tell_prepared(self, message: dict[str, Any]) -> None:
        """Send a message to the run's workers: one way, lest one that hangs holds the run."""
        # Only to those that know the message: an unknown one ends a worker.
        for address in self.prepared & self._scheduler.workers.keys():
            self._scheduler.worker_send(address, message)

    def emit_busy(self, busy: Mapping[str, tuple[Occupied, float]]) -> None:
        """Tell the client of workers that are waited for, as tasks of others keep them busy."""
        tasks = {self.name(address): found.task for address, (found, _) in busy.items()}
        since = {self.name(address): found.seconds for address, (found, _) in busy.items()}
        self._context.emit("waiting", workers=[*tasks], tasks=tasks, busy_seconds=since)
