"""The iterations on one worker: halos come from its neighbours, rows stay until shares change."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fpmdask.apps.stencil.block import Bring, Update, UpdateFailed
from fpmdask.apps.stencil.spec import ITERATE, StencilSpec
from fpmdask.apps.stencil.worker.counters import Counters
from fpmdask.apps.stencil.worker.inputs import Inputs
from fpmdask.apps.stencil.worker.kept import Survivors
from fpmdask.apps.stencil.worker.looks import Looks, Metering
from fpmdask.apps.stencil.worker.own_rows import Means, OwnRows
from fpmdask.apps.stencil.worker.probe import probed
from fpmdask.apps.stencil.worker.stored import Stored
from fpmdask.apps.stencil.worker.sweeps import Threads
from fpmdask.apps.stencil.worker.team import Team
from fpmdask.errors import KernelError, PartitionError, StorageError
from fpmdask.runtime.remote_errors import describe_error
from fpmdask.runtime.worker.block_file import DiskFailed
from fpmdask.runtime.worker.fetch import FetchFailed
from fpmdask.runtime.worker.rows_output import StorageFailed
from fpmdask.runtime.worker.side import RunSpace, WorkerSide
from fpmdask.runtime.worker.space import Whole
from fpmdask.runtime.worker.steps import Commands, step
from fpmdask.timing import FunctionKernel

if TYPE_CHECKING:
    from fpmdask.apps.stencil.worker.instrumented_iteration import InstrumentedIteration


def iterate(order: Mapping[str, Any]) -> None:
    """Task: take part in all iterations."""
    step(ITERATE, order, lambda side, space: _iterate(side, space, order))


def _iterate(side: WorkerSide, space: RunSpace, order: Mapping[str, Any]) -> Mapping[str, Any]:
    threads = Threads(side.worker.state.nthreads, space.cancelled)
    iterating = Iterating(side, space, order, threads)
    try:
        with side.blas_threads():
            return iterating.run()
    except UpdateFailed as failed:
        # the run is over: its end ends what the others wait for
        return {"raised": describe_error(failed.__cause__ or failed)}
    except StorageFailed as failed:
        return {"failed": describe_error(failed.__cause__ or failed)}
    except StorageError as failed:
        return {"failed": describe_error(failed)}
    except PartitionError as unusable:
        return {"unusable": str(unusable)}
    except DiskFailed as failed:  # the others have no more room than before
        return {"unusable": f"on worker {side.worker.name} {failed.strerror}"}
    except FetchFailed as failed:
        iterating.end()
        return {"missing": failed.peers[0]}
    except BaseException:
        iterating.end()
        raise
    finally:
        iterating.rows.close()
        threads.close()


class Iterating:
    """One attempt on one worker.

    Parameters
    ----------
    side, space, order
        The worker, the run, and what it is to do.
    threads
        The worker's.

    Attributes
    ----------
    rows : OwnRows
        Of this worker.
    """

    def __init__(
        self, side: WorkerSide, space: RunSpace, order: Mapping[str, Any], threads: Threads
    ) -> None:
        update = getattr(space.kernel, "function", None)
        if not isinstance(space.kernel, FunctionKernel) or not isinstance(update, Update):
            raise KernelError("the update was not prepared on this worker")
        self._order, self._space, name = order, space, str(side.worker.name)
        space.exchange.know(order["channels"], order["bare"])
        spec, attempt = StencilSpec.from_json(order["spec"]), order["attempt"]
        commands = Commands(side, space, ITERATE, order, f"attempt {attempt}", attempt=attempt)
        wraps = spec.boundary[0] == "periodic"
        self._team = Team(space.exchange, commands, attempt, order["rows"], wraps=wraps)
        counters, tuning = Counters(), space.tuning.stencil
        self._means = Means(
            update,
            order["memory"],
            order["prefetch"],
            side.worker.local_directory,
            threads,
            counters,
            tuning,
        )
        self.rows = OwnRows(spec, self._means, self._team, Survivors(space.kept))
        self._inputs = Inputs(space, spec, order, name)
        self._stored = Stored(self._team, space, order, name, counters)
        self._looks = Looks(
            self._team,
            counters,
            tuning,
            tries=order["trial"],
            checks=order["load_checks"],
            again=order["again"],
        )
        self._metering = Metering(self._team, counters)
        self._sample: InstrumentedIteration | None = None  # that is being measured
        self._planned: float | None = None  # seconds of an iteration, in core
        self._start, self._stored_at = 0, 0  # iterations of earlier attempts, or calls; and stored

    def run(self) -> Mapping[str, Any]:
        """Iterate; the result is kept for the coordinator to publish."""
        order, counters = self._order, self._means.counters
        if not order["joins"]:
            self._find()
        self._metering.heed(order, self._start)
        self.rows.every, self._planned = order["every"], order["planned"]
        if order["probe"]:
            span, joins = self._team.span, order["joins"]
            told = probed(self.rows.spec, self._means, self._inputs, span, joins=joins)
            self._team.commands.tell(**told, made=self._start)
            if not joins:
                self._heed(self._command())
        turn = 0
        while self._metering.instruments:
            self._instrument(turn)
            turn += 1
        began = time.perf_counter()
        done = self._iterations(self._join() if order["joins"] else self._begin())
        if self._stored.output is not None:
            self._save(done, last=True)
        else:
            for number, value in enumerate(self.rows.result()):
                self._space.parts[number] = Whole(value)
        counters.seconds["total"] = time.perf_counter() - began
        received = counters.nbytes_received + self._team.nbytes_received
        history = self._metering.history
        return {
            "iterations": self._start + done,
            "rows_computed": counters.rows_computed,
            "nbytes_received": received + self._inputs.nbytes_received,
            "blocks": self.rows.sweeps.blocks,
            "history": None if history is None else history.to_json(),
            **counters.seconds,
        }

    def _instrument(self, turn: int) -> None:
        """Measure an iteration of a sample of rows; have those that the coordinator decides on."""
        # loads MHETA
        from fpmdask.apps.stencil.worker.instrumented_iteration import InstrumentedIteration

        inputs, team = self._inputs, self._team
        sample = InstrumentedIteration(self.rows.spec, self._means, inputs, team, turn)
        self._sample = sample
        self._team.commands.tell(**sample.measured(), made=self._start)
        note = self._command()
        sample.end()
        self._sample = None
        self._heed(note)

    def _heed(self, note: Mapping[str, Any]) -> None:
        """Take the coordinator's word for who begins with which rows."""
        self._team.place(note["rows"])
        self._metering.heed(note, self._start)
        self.rows.every, self._planned = note["every"], note["planned"]

    def _find(self) -> None:
        """Find out from which iteration the team goes on."""
        rows, team = self.rows, self._team
        self._start = self._stored_at = self._stored.find(rows.spec.iterations)
        if team.attempt:
            self._start = rows.survivors.find(team, rows.spec.shape[0], self._start)
        rows.spec = replace(rows.spec, iterations=rows.spec.iterations - self._start)

    def _begin(self) -> int:
        """Load this worker's rows; return how many iterations are made, none."""
        rows, team, survivors = self.rows, self._team, self.rows.survivors
        fields: Bring = self._stored.load if self._stored_at else self._inputs.fields
        if self._start > self._stored_at:
            nbytes = max(1, rows.spec.row_nbytes)
            fields = survivors.bring(team, max(1, self._means.tuning.band_nbytes // nbytes))
        low, high = team.span
        unit = self._inputs.unit if low < high else 1
        rows.load(fields, self._inputs.args, unit)
        survivors.brought(team, len(rows.spec.fields))
        return 0

    def _join(self) -> int:
        """Get this worker's rows from a team amid its iterations; return how many are made."""
        note = self._command()
        done: int = note["done"]
        self._team.place(note["before"])
        self._team.moved = note["moved"]
        self.rows.join()
        if note["history"]:
            self._metering.keep(done)
        self._go_on(done, note)
        return done

    def _iterations(self, first: int) -> int:
        """Make all of them but the `first` ones; return how many there were."""
        spec, looks, team, tuning = self.rows.spec, self._looks, self._team, self._means.tuning
        looks.begin(first, self._planned)
        told, longest = time.perf_counter(), 0.0
        for done in range(first + 1, spec.iterations + 1):
            count = self._start + done
            checks = spec.tolerance is not None and not count % spec.check_every
            began = time.perf_counter()
            change = self._one(done, checks=checks and done < spec.iterations)
            if done == spec.iterations:
                break
            now = time.perf_counter()
            longest = max(longest, now - began)
            if now - told >= tuning.news_seconds and team.leads:
                team.commands.tell(iterations=count, longest_seconds=longest)
                told, longest = now, 0.0
            due, taken, asked = looks.due(done), looks.seconds, 0.0
            if checks or due:
                change, seconds, asked = team.reduce([change, taken, float(looks.asked)])
                looks.paused(time.perf_counter() - now)
            if checks and change <= (spec.tolerance or 0.0):
                return done
            looks.paused(self._save(done))
            timed, moved = due and looks.are_timed(done, seconds), team.moved
            tells = timed and looks.tells(done, seconds)
            self._look(done, taken, tells=tells, asked=timed and bool(asked))
            if team.moved != moved:
                looks.begin(done, self._planned)
            else:
                looks.go_on(done, timed=timed)
        return spec.iterations

    def _one(self, done: int, *, checks: bool) -> float:
        while (command := self._team.commands.poll()) is not None:  # it may have to stop
            self._heard(command)
        return self._metering.one(self.rows, done - 1, checks=checks)

    def _look(self, done: int, taken: float, *, tells: bool, asked: bool) -> None:
        """Tell the coordinator what iterations take where that is due; do what it decides."""
        looks, metering, count = self._looks, self._metering, self._start + done
        if metering.history is not None:
            if not (metering.is_off() or asked):
                return
            told = metering.again(self.rows, count)
        elif asked or tells:
            told = looks.trial(done, count, taken, self.rows.byte_seconds)
        else:
            return
        self._team.commands.tell(**told)
        self._go_on(done, self._command())
        if metering.history is None:
            looks.tries = self._may_end

    @property
    def _may_end(self) -> bool:
        """Whether a tolerance may end the run: moving, once, pays only after some iterations."""
        again: bool = self._order["again"]
        return self.rows.spec.tolerance is not None and again and not self._looks.moves

    def _go_on(self, done: int, note: Mapping[str, Any]) -> None:
        """Do what the coordinator makes of it: rows move, or not."""
        self._looks.asked, self._metering.expected = False, note["expected"]
        self._planned = note["planned"]
        if note["rows"] is None:
            return
        self._looks.moves += note["moves"]
        with self._means.counters.timed("moving"):
            if self.rows.move(self._start + done, note, self._inputs.args):
                self._stored.gather()
        if self._metering.history is not None:
            self._metering.history.begin()

    def _save(self, done: int, *, last: bool = False) -> float:
        return self._stored.save(self._start + done, self.rows, last=last)

    def end(self) -> None:
        """Have all that wait for this worker be refused: it goes on no further."""
        if self._sample is not None:
            self._sample.refuse()
        self._stored.end()
        self.rows.end()

    def _command(self) -> Mapping[str, Any]:
        """Return what the coordinator decides, which is waited for."""
        while (decision := self._heard(self._team.commands.get())) is None:
            pass
        return decision

    def _heard(self, command: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return a decision, None where it only asks for a load check."""
        if "load_check" in command:
            self._looks.asked = True
            return None
        return command
