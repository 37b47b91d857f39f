"""One measurement: DFPA over workers that may fail, leave and join (no I/O).

Events go in, instructions come out:

    start ─▶ Measure(worker, units, round) … (the scouting if wanted, or round 1 of DFPA)
    answered / failed / left / overdue ─▶ nothing, until the last pending answer of the round, then
        the next round's Measure … or Conclude
    joined ─▶ nothing; the worker is in from the next round

A round in which nobody came, went or turned out other than his prior model is told to `Dfpa`. After
any other round its measurements are put into the models and a new `Dfpa` begins from these, over
the workers that are there. A scouting round times every worker without a model with the same few
units; its speeds are where `Dfpa` begins and are forgotten once the worker has been measured. Every
event and every answer to it is logged, so that `replay` can run
the same decisions again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fpmdask.errors import MeasuringError, PartitionError
from fpmdask.models import ConstantModel, Model, PiecewiseLinearModel
from fpmdask.partition import Dfpa, geometric, imbalance
from fpmdask.partition.outliers import Measured, outliers
from fpmdask.runtime.coordinator.instructions import (
    Conclude,
    Instruction,
    Measure,
    Member,
    Result,
    RoundRecord,
)
from fpmdask.runtime.coordinator.journal import Journal


class Measuring:
    """DFPA with changing membership.

    Parameters
    ----------
    units
        Units to distribute.
    members
        Worker key (its address) → `Member`, in worker order.
    epsilon, max_rounds, least_gain, thorough
        As for `fpmdask.partition.Dfpa`; ``max_rounds`` counts all rounds, also interrupted ones.
    repeats
        How often the only round, where `max_rounds` is 1, is measured again at most, while it has
        `outliers`: these shares rest on it alone.
    scout
        Units of the scouting round, 0 for none; the only one with a `max_rounds` of 1, whose speeds
        the shares then follow. An even first round, as in the paper, takes as long
        as the slowest worker needs for an even share, and that one touches memory that its own
        share does not need.

    Raises
    ------
    MeasuringError
        From the events: a stale or impossible answer; nothing changes then.
    """

    def __init__(
        self,
        units: int,
        members: Mapping[str, Member],
        *,
        epsilon: float,
        max_rounds: int,
        scout: int = 0,
        least_gain: float = 0.0,
        thorough: bool = False,
        repeats: int = 0,
    ) -> None:
        self.units = units
        self.scout = scout
        self.least_gain = least_gain
        self.thorough = thorough
        self.repeats = repeats
        self.epsilon = epsilon
        self.max_rounds = max_rounds
        self.members: dict[str, Member] = dict(members)
        self.left_out: dict[str, str] = {}
        self.rounds: list[RoundRecord] = []
        self.result: Result | None = None
        self.failure: str | None = None
        self.log = Journal()
        self.header = {
            "units": units,
            "epsilon": epsilon,
            "max_rounds": max_rounds,
            "scout": scout,
            "least_gain": least_gain,
            "thorough": thorough,
            "repeats": repeats,
            "members": {worker: member.to_json() for worker, member in members.items()},
        }
        self._started = False
        self._dfpa: Dfpa | None = None
        self._order: list[str] = []
        self._asked: dict[str, int] = {}
        self._seconds: dict[str, float] = {}
        self._pending: set[str] = set()
        self._looks: dict[str, Measured] = {}
        self._half_widths: dict[str, float] = {}  # of the round's seconds, where the timer told
        # worker → units → half-widths of all seconds of this run that the model's point there has
        self._told: dict[str, dict[float, list[float | None]]] = {}
        self._scouted: dict[str, tuple[int, float]] = {}  # units, seconds

    @property
    def round(self) -> int:
        """Number of the current round, from 1; 0 before `start`."""
        return len(self.rounds) + 1 if self._started else 0

    @property
    def concluded(self) -> bool:
        """Whether `Conclude` was given."""
        return self.result is not None or self.failure is not None

    @property
    def pending(self) -> frozenset[str]:
        """Workers whose answer the current round waits for."""
        return frozenset(self._pending)

    @property
    def models(self) -> dict[str, PiecewiseLinearModel]:
        """What is known of each worker; of one that was only scouted its one speed."""
        found = {}
        for worker, member in self.members.items():
            if member.model is not None:
                found[worker] = member.model
            elif worker in self._scouted:
                units, seconds = self._scouted[worker]
                found[worker] = PiecewiseLinearModel.from_points([units], [seconds])
        return found

    @property
    def uncertainty(self) -> dict[str, float]:
        """Worker → ± of its last measured speed, relative, where the timer could tell."""
        return {
            worker: half_width / self._seconds[worker]
            for worker, half_width in self._half_widths.items()
            if worker in self._seconds and math.isfinite(self._seconds[worker])
        }

    def half_widths(self, worker: str) -> dict[float, float]:
        """Return units → half-width of the mean of the seconds that this run has measured there.

        Where the timer could not tell one of them, there is none.
        """
        found = {}
        for units, told in self._told.get(worker, {}).items():
            known = [half_width for half_width in told if half_width is not None]
            if len(known) == len(told):
                found[units] = math.hypot(*known) / len(known)
        return found

    # ---- events

    def start(self) -> list[Instruction]:
        """Begin with the first round."""
        if self._started:
            raise MeasuringError(self._story("started twice"))
        self._started = True
        return self._logged({"event": "start"}, self._scouting() or self._begin_round())

    def answered(
        self, worker: str, round: int, seconds: float, half_width: float | None = None
    ) -> list[Instruction]:
        """``worker`` needed ``seconds`` for its units of ``round`` (inf: too many units).

        ``half_width`` of their confidence interval, None where the timer could not tell.
        """
        self._check(worker, round)
        if not seconds > 0:
            raise MeasuringError(
                self._story(f"{worker} answered {seconds!r} seconds; more than 0 is allowed")
            )
        self._pending.discard(worker)
        self._seconds[worker] = float(seconds)
        event = {"event": "answered", "worker": worker, "round": round, "seconds": float(seconds)}
        self._half_widths.pop(worker, None)
        if half_width is not None:
            self._half_widths[worker] = event["half_width"] = float(half_width)
        if math.isfinite(seconds):
            of_worker = self._told.setdefault(worker, {})
            of_worker.setdefault(float(self._asked[worker]), []).append(half_width)
        return self._logged(event, self._advance())

    def failed(self, worker: str, round: int, reason: str) -> list[Instruction]:
        """``worker`` could not run the kernel in ``round``; it is left out with ``reason``."""
        self._check(worker, round)
        event = {"event": "failed", "worker": worker, "round": round, "reason": reason}
        self._drop(worker, reason)
        return self._logged(event, self._advance())

    def overdue(self, worker: str, round: int, reason: str) -> list[Instruction]:
        """``worker`` has not answered in time; it is left out."""
        self._check(worker, round)
        event = {"event": "overdue", "worker": worker, "round": round, "reason": reason}
        self._drop(worker, reason)
        return self._logged(event, self._advance())

    def left(self, worker: str) -> list[Instruction]:
        """``worker`` is gone from the cluster (at any time; unknown workers are ignored)."""
        if self.concluded or worker not in self.members:
            return []
        self._drop(worker, "left the cluster")
        return self._logged({"event": "left", "worker": worker}, self._advance())

    def joined(self, worker: str, member: Member) -> list[Instruction]:
        """``worker`` came; it takes part from the next round."""
        if self.concluded:
            return []
        self.members[worker] = member
        self.left_out.pop(worker, None)
        event = {"event": "joined", "worker": worker, "member": member.to_json()}
        return self._logged(event, [])

    # ---- decisions

    def _begin_round(self) -> list[Instruction]:
        try:
            if self._dfpa is None:
                self._renew()
            assert self._dfpa is not None
            proposal = self._dfpa.ask() if len(self.rounds) < self.max_rounds else None
            if proposal is None:
                return self._conclude()
        except PartitionError as error:
            return self._fail(str(error))
        return self._ask({w: int(n) for w, n in zip(self._order, proposal, strict=True)})

    def _scouting(self) -> list[Instruction]:
        """Time a few units, an even share at most, on each worker of which nothing is known."""
        few = min(self.scout, max(1, self.units // max(1, len(self.members))))
        most = {w: 0 if m.model is not None else m.limit for w, m in self.members.items()}
        return self._ask({w: int(min(few, room)) for w, room in most.items()})

    def _ask(self, units: Mapping[str, int]) -> list[Instruction]:
        self._asked = dict(units)
        self._seconds = {}
        self._pending = {worker for worker, n in self._asked.items() if n}
        return [Measure(w, n, self.round) for w, n in self._asked.items() if n]

    def _renew(self) -> None:
        """Begin a new Dfpa from the models of the workers that are there."""
        if not self.members:
            raise PartitionError(self._story("no worker is left to measure"))
        self._order = list(self.members)
        members = self.members.values()
        models = [self._known(worker) for worker in self._order]
        self._dfpa = Dfpa(
            self.units,
            len(self._order),
            epsilon=self.epsilon,
            limits=[member.limit for member in members],
            models=models if any(model is not None for model in models) else None,
            max_rounds=max(1, self.max_rounds - len(self.rounds)),
            least_gain=self.least_gain,
            thorough=self.thorough,
        )

    def _known(self, worker: str) -> Model | None:
        """Return the worker's model, or what scouting has found where there is none."""
        model = self.members[worker].model
        if model is not None or worker not in self._scouted:
            return model
        units, seconds = self._scouted[worker]
        return ConstantModel(units / seconds)  # not for `Dfpa` to keep as a measured point

    def _advance(self) -> list[Instruction]:
        if self._pending or self.concluded or not self._started:
            return []
        if not self.members:
            return self._fail(self._story("no worker is left to measure"))
        complete = (
            self._dfpa is not None
            and self._order == list(self.members)
            and all(worker in self._seconds for worker, units in self._asked.items() if units)
        )
        self._record(complete)
        if self.max_rounds == 1 and self._look():
            return self._ask({w: n for w, n in self._asked.items() if w in self.members})
        refuted = self._confirm_priors()
        try:
            if self._dfpa is not None and complete and not refuted:
                self._dfpa.tell([self._seconds.get(worker, 0.0) for worker in self._order])
                for worker, model in zip(self._order, self._dfpa.models, strict=True):
                    # what Dfpa has measured is piecewise linear; what it was given stays
                    if isinstance(model, PiecewiseLinearModel):
                        self.members[worker] = replace(self.members[worker], model=model)
            else:
                self._absorb(refuted)
                self._dfpa = None
        except PartitionError as error:
            return self._fail(str(error))
        return self._begin_round()

    def _look(self) -> bool:
        """Return whether to measure the only round again; else settle on what it has shown."""
        for worker, seconds in self._seconds.items():
            if (member := self.members.get(worker)) is None or math.isinf(seconds):
                continue
            units, half_width = self._asked[worker], self._half_widths.get(worker, 0.0)
            known = self._looks.get(worker)
            self._looks[worker] = (
                Measured(units, (seconds,), (half_width,), member.alike, member.cores)
                if known is None
                else known.again(seconds, half_width)
            )
        looks = {worker: look for worker, look in self._looks.items() if worker in self._seconds}
        if len(self.rounds) <= self.repeats and outliers(looks):
            return True
        for worker, look in looks.items():
            if math.isfinite(self._seconds[worker]):
                self._seconds[worker], half_width = look.settled
                if worker in self._half_widths:
                    self._half_widths[worker] = half_width
                self._told[worker] = {float(look.units): [self._half_widths.get(worker)]}
        return False

    def _record(self, complete: bool) -> None:
        """Append the round that has just ended."""
        balance: float | None = None
        if complete:
            balance = imbalance(
                [self._seconds.get(worker, 0.0) for worker in self._order],
                [self._asked[worker] for worker in self._order],
                [self.members[worker].limit for worker in self._order],
            )
        answers = {w: self._seconds.get(w, None if n else 0.0) for w, n in self._asked.items()}
        self.rounds.append(RoundRecord(self.round, dict(self._asked), answers, balance))

    def _confirm_priors(self) -> set[str]:
        """Settle priors measured in this round; return the workers whose prior was wrong."""
        refuted: set[str] = set()
        for worker, measured in self._seconds.items():
            member = self.members.get(worker)
            if member is None:
                continue
            if member.refuted(self._asked[worker], measured, self.epsilon):
                refuted.add(worker)
            self.members[worker] = replace(member, prior=False)
        return refuted

    def _absorb(self, refuted: set[str]) -> None:
        """Put the measurements of scouting or an interrupted round into models and limits."""
        for worker, measured in self._seconds.items():
            member = self.members.get(worker)
            if member is None:
                continue
            units = self._asked[worker]
            if self._dfpa is None and math.isfinite(measured):
                self._scouted[worker] = units, measured
                self._told.pop(worker, None)  # no point of the model
            else:
                if afresh := worker in refuted:
                    self._told[worker] = {float(units): [self._half_widths.get(worker)]}
                self.members[worker] = member.measured(units, measured, afresh=afresh)

    def _conclude(self) -> list[Instruction]:
        assert self._dfpa is not None
        outcome = self._dfpa.outcome
        if outcome is not None and outcome.reason is not None:
            distribution, seconds = outcome.distribution, outcome.seconds
            proposal = outcome.proposal
            reason, balance = outcome.reason, outcome.imbalance
        else:
            distribution, seconds, balance = self._predicted()
            reason, proposal = "max_rounds", distribution
        self.result = Result(
            {w: int(n) for w, n in zip(self._order, distribution, strict=True)},
            {w: float(s) for w, s in zip(self._order, seconds, strict=True)},
            float(balance),
            reason,
            {w: int(n) for w, n in zip(self._order, proposal, strict=True)},
        )
        return [Conclude()]

    def _predicted(self) -> tuple[Any, Any, float]:
        """The models' distribution, where max_rounds ended DFPA right after a change.

        Workers that were never measured get something only where the others have too little room;
        they are taken for average ones then.
        """
        models = {w: m for w in self._order if (m := self._known(w)) is not None}
        if sum(self.members[worker].limit for worker in models) < self.units:
            even = self.units / len(self._order)
            speeds = [float(model.speed(even)) for model in models.values()]
            average = ConstantModel(float(np.mean(speeds)) if speeds else 1.0)
            models = {worker: models.get(worker, average) for worker in self._order}
        limits = [self.members[worker].limit for worker in models]
        shares = dict(
            zip(models, geometric(self.units, [*models.values()], limits).tolist(), strict=True)
        )
        units = np.array([shares.get(worker, 0) for worker in self._order], dtype=np.int64)
        seconds = [
            float(models[worker].time(n)) if n else 0.0
            for worker, n in zip(self._order, units.tolist(), strict=True)
        ]
        bounds = [self.members[worker].limit for worker in self._order]
        return units, seconds, imbalance(seconds, units, bounds)

    def _fail(self, message: str) -> list[Instruction]:
        self._pending.clear()
        self.failure = message
        return [Conclude()]

    def _drop(self, worker: str, reason: str) -> None:
        self._pending.discard(worker)
        self.members.pop(worker, None)
        self.left_out[worker] = reason

    def _check(self, worker: str, round: int) -> None:
        """Refuse a stale answer, printing both values."""
        if self.concluded or round != self.round:
            raise MeasuringError(
                self._story(f"{worker} answered round {round}; the current one is {self.round}")
            )
        if worker not in self._pending:
            raise MeasuringError(
                self._story(f"{worker} answered round {round}, which does not wait for it")
            )

    def _logged(self, event: dict[str, Any], instructions: list[Instruction]) -> list[Instruction]:
        """Note the event and what was decided; return the decision."""
        return self.log.note(event, instructions, self.result, self.failure)

    def _story(self, what: str) -> str:
        """Return ``what`` with the last events, for an error message."""
        out = ", ".join(f"{worker} ({reason})" for worker, reason in self.left_out.items())
        return f"{what}. Left out: {out or 'nobody'}. Last events: {self.log.last()}."
