"""DFPA: measure, partition by what was measured, measure again, until all finish together.

    models --> ask --> workers --> tell --> fit --> balanced? --> outcome
                ^                            |
                +------- geometric <---------+

A `Dfpa` decides and never measures: no clock, no random numbers, no input or output.
"""

import copy
import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.errors import PartitionError
from fpmdask.models import Model
from fpmdask.partition.evidence import Evidence, Fit
from fpmdask.partition.geometric import geometric
from fpmdask.partition.imbalance import imbalance
from fpmdask.partition.outcome import Outcome, Reason, Round, read_only
from fpmdask.partition.refinement import refined, with_rest
from fpmdask.partition.settings import check_epsilon, check_gain, check_models, check_rounds
from fpmdask.partition.stopping import best_round, resolution, worthwhile
from fpmdask.partition.validate import (
    FloatArray,
    IntArray,
    Limits,
    check_feasible,
    check_limits,
    check_numbers,
    check_units,
    check_workers,
)

_EPSILON = 0.1  # unless it is given
_STORY = 8  # events that an error tells
_BEYOND = 1.1  # a share is trusted unmeasured up to so much of the worker's largest measured size


class Dfpa:
    """Find the distribution with which all workers finish together, by measuring as little.

    Parameters
    ----------
    units : int
        Units to distribute, at least 1; an integral float is allowed.
    workers : int
        At least 1.
    epsilon : float, optional
        Imbalance at which a round is good enough, > 0; 0.1 if it is not given.
    limits : sequence of float or None, optional
        Most units per worker, ``None`` or ``inf`` for no limit.
    models : sequence of Model or None, optional
        What is known already, per worker. The points of a measured (piecewise, Akima) model count
        as measurements. Any other model lends its shape until the worker is measured, which sets
        the level. Where nothing is known the mean speed of the others is assumed.
    max_rounds : int
        Most rounds, at least 1.
    least_gain : float, optional
        Relative gain in makespan that pays for another round; 0 if measuring costs nothing that
        matters. It is what one round costs, relative to the work that is distributed.
    thorough : bool, optional
        Whether to go on until `epsilon` is met or the models allow nothing better, where a round
        costs nothing (`least_gain` of 0) and no noise shows. Without it the search ends as soon as
        no gain is left that is worth a round. By default it is thorough if `epsilon` is given.

    Raises
    ------
    PartitionError
        If an argument is not allowed or the units do not fit the limits.

    Notes
    -----
    `ask` for a distribution, measure every worker that has units, all at the same time, `tell`
    the seconds, and so on until `ask` returns None. The first distribution is even, or follows
    `models`; each next one is the `geometric` distribution of what is known by then. It ends when

    - a round's imbalance is at most `epsilon` and no worker without units would, by its model,
      finish one unit before the others ("balanced"; right `models` need one round);
    - no proposal promises a makespan shorter by more than the `resolution` and `least_gain`
      ("stagnant"); from the fourth round on twice, thrice, … `least_gain`. If it is `thorough`,
      only when by the models through all measurements no distribution is balanced and none better
      by more than the smallest step of one unit, and no cliff above an early worker's share is
      left to be narrowed down (see `refinement`);
    - `max_rounds` rounds are measured.

    What the paper leaves open, and where this differs:

    1. *Stopping.* ``(t_max - t_min) / t_min`` as in the paper's loop (its problem statement lacks
       the absolute value), with workers at their limit and without units treated as in
       `fpmdask.partition.imbalance`.
    2. *Noise* is inferred from how far measurements of near sizes disagree over all workers, and
       smoothed away by as much (see `smoothed`): without noise the fit goes through every point,
       with noise it averages the points near a size. The trust region is what was measured:
       outside of it the speed stays constant, no trend is followed further. Log-normal noise of
       5 %, two to sixteen workers: 1.08 times the optimum in 95 % of runs, at most 7 rounds on
       average. Of 15 %: 1.20 times in 95 % with six constant workers or some paging ones; in 92 to
       96 % on a cliff, with sixteen or where most page (there 9 rounds). But on the cliff the
       `Outcome.proposal` is better then: a poor round measured well by luck stays the outcome.
    3. *Resolution.* Gains below half the noise of one measurement, or below the noise itself
       where that is under 2.75 %, are not chased (see `stopping`). What looks like noise may be
       the shape of the speeds: `thorough` goes by the measurements themselves, as long as these
       do not contradict each other.
    4. *A size measured twice* is averaged; older measurements weigh less.
    5. *Drift.* More units in much less time than another measurement says that the worker has
       changed: its older measurements are forgotten, and older rounds are no outcome any more.
    6. *The same distribution proposed again* is measured again only if that round was not the
       best and the models promise a gain; three times at most.
    7. *Zero units* are not measured. A worker never measured is tried as soon as the mean speed
       of the others promises a gain.
    8. *Too large* (``inf``) makes one unit less that worker's limit; the next share to try is half
       way between the largest good one and the limit. The round does not count as an outcome, its
       other times count as measurements.
    9. *Between points* the fit's speed is linear as in the paper, except next to a point below the
       chord of its neighbours (the far side of a paging cliff): linear interpolation nears the
       solution from one side only, in small steps, and a power law is used.
    10. *A hiccup* (the first call, another program) looks like a cliff, and the search then stays
        below it. Before giving up unbalanced, a cliff seen by one measurement only is measured
        again, once per worker.

    O(p (log n + r)) per round for p workers and r rounds.

    References
    ----------
    A. Lastovetsky, R. Reddy (2009), Distributed Data Partitioning for Heterogeneous Processors
    Based on Partial Estimation of Their Functional Performance Models, section 2.

    Examples
    --------
    >>> dfpa = Dfpa(1000, workers=3, epsilon=0.05)
    >>> while (distribution := dfpa.ask()) is not None:
    ...     dfpa.tell(distribution / np.array([5.0, 3.0, 2.0]))
    >>> dfpa.outcome.distribution, dfpa.outcome.reason, len(dfpa.outcome.rounds)
    (array([500, 300, 200]), 'balanced', 2)
    """

    def __init__(
        self,
        units: float,
        workers: int,
        *,
        epsilon: float | None = None,
        limits: Limits | None = None,
        models: Sequence[Model | None] | None = None,
        max_rounds: int = 20,
        least_gain: float = 0.0,
        thorough: bool | None = None,
    ) -> None:
        self.units = check_units(units)
        self.workers = check_workers(workers)
        self.epsilon = check_epsilon(_EPSILON if epsilon is None else epsilon)
        self.thorough = epsilon is not None if thorough is None else thorough
        self.max_rounds = check_rounds(max_rounds)
        self.least_gain = check_gain(least_gain)
        known = check_models(models, self.workers)
        room = [math.inf if m is None else m.units_within(math.inf) for m in known]
        self._limits = np.minimum(check_limits(limits, self.workers), np.floor(room))
        check_feasible(self.units, self._limits)
        self._evidence = Evidence(known, self.units)
        self._rounds: list[Round] = []
        self._reason: Reason | None = None
        self._asked = False
        self._story: deque[str] = deque(maxlen=_STORY)
        self._fit = self._evidence.fit()
        self._next = self._proposal()

    def ask(self) -> IntArray | None:
        """Return the distribution to measure next, the same one until `tell`.

        Returns
        -------
        ndarray of int64 or None
            Units per worker, read-only; None once stopped.
        """
        if self._reason is not None:
            return None
        if not self._asked:
            self._asked = True
            self._story.append(f"asked {_listed(self._next)}")
        return self._next

    def tell(self, seconds: ArrayLike) -> None:
        """Take in the times measured for the distribution last asked.

        Parameters
        ----------
        seconds : array_like of float
            Seconds per worker, finite and > 0, or ``inf`` where the share was too large. Entries
            of workers without units are ignored.

        Raises
        ------
        PartitionError
            If nothing was asked, a value is not allowed, or the limits that follow from ``inf``
            leave no room for the units. Whatever is raised, nothing has changed then: the same
            distribution is still asked.
        """
        if not self._asked or self._reason is not None:
            raise PartitionError(self._refusal())
        times = self._checked(seconds)
        limits = np.where(np.isinf(times), self._next - 1.0, self._limits)
        check_feasible(self.units, limits)
        balance = imbalance(times, self._next, self._limits)
        after = copy.copy(self)  # whatever raises below, this one is as it was
        after._rounds = [*self._rounds, Round(self._next, read_only(times), balance)]
        after._story = self._story.copy()
        after._story.append(f"told {_listed(times)}, imbalance {balance:.3g}")
        after._evidence = self._evidence.with_round(self._next, times, self._fit.noise)
        after._limits = limits
        after._asked = False
        after._fit = after._evidence.fit()
        after._decide()
        vars(self).update(vars(after))

    @property
    def outcome(self) -> Outcome | None:
        """The best round so far, see `Outcome`; None before the first `tell`."""
        if not self._rounds:
            return None
        met = self._reason == "balanced"
        best = self._rounds[-1] if met else best_round(self._valid(), self._limits)
        return Outcome(
            best.distribution,
            best.seconds,
            best.imbalance,
            tuple(self._rounds),
            self._reason,
            self.models,
            self._trusted(best),
        )

    @property
    def models(self) -> tuple[Model | None, ...]:
        """What is known of each worker, measurements as points; None where nothing is."""
        return tuple(self._evidence.models)

    @property
    def limits(self) -> FloatArray:
        """Most units per worker as known now, ``inf`` for no limit; read-only."""
        return read_only(self._limits)

    @property
    def noise(self) -> float:
        """Relative standard deviation of one measurement as inferred so far; 0 if unknown."""
        return self._fit.noise

    @property
    def resolution(self) -> float:
        """Relative gain in makespan that measurements with this noise cannot resolve."""
        return resolution(self.noise)

    def __repr__(self) -> str:
        state = self._reason or "running"
        return f"<Dfpa: {self.units} units, {self.workers} workers, {self._heard()}, {state}>"

    def _decide(self) -> None:
        self._next = self._proposal()
        if self._balanced():
            self._reason = "balanced"
        elif not worthwhile(self._next, self._valid(), self._limits, self._fit, self.least_gain):
            further = self._further()
            if further is None:
                self._reason = "stagnant"
            elif len(self._rounds) >= self.max_rounds:
                self._reason = "max_rounds"
            else:
                self._next = further
        elif len(self._rounds) >= self.max_rounds:
            self._reason = "max_rounds"

    def _valid(self) -> list[Round]:
        """Return the rounds since a worker was last seen to have changed, that round included."""
        return self._rounds[max(self._evidence.changed_in - 1, 0) :]

    def _further(self) -> IntArray | None:
        """Return what to measure although the smoothed models promise no gain worth a round."""
        best = best_round(self._valid(), self._limits)
        if best.imbalance <= self.epsilon or not math.isfinite(best.makespan):
            return None
        found = self._doubt(best) if len(self._rounds) < self.max_rounds else None
        exact = self._evidence.interpolated() if self.thorough and not self.least_gain else None
        if found is None and exact is not None:
            proposal, rounds = self._proposal(exact), self._valid()
            limits = self._limits
            found = refined(best, rounds, self._evidence, limits, proposal, self.epsilon)
        return None if found is None else read_only(found)

    def _doubt(self, best: Round) -> IntArray | None:
        """Return a distribution that measures again what may have been a hiccup."""
        early = best.seconds * (1.0 + self.epsilon) < best.makespan
        doubtful = self._evidence.doubtful(np.where(early, best.distribution, 0), self._limits)
        again = np.array([doubtful.get(i, 0) for i in range(self.workers)], dtype=np.int64)
        return with_rest(self.units, again, self._fit, self._limits)

    def _balanced(self) -> bool:
        last = self._rounds[-1]
        if not last.imbalance <= self.epsilon:
            return False
        idle = np.flatnonzero((last.distribution == 0) & (self._limits >= 1))
        known = [i for i in idle if self._evidence.models[i] is not None]
        return all(self._fit.models[i].time(1.0) >= last.makespan for i in known)

    def _proposal(self, fit: Fit | None = None) -> IntArray:
        fit = fit or self._fit
        caps = self._evidence.caps(self._limits)
        most = caps if caps.sum() >= self.units else self._limits
        return read_only(geometric(self.units, fit.models, most))

    def _trusted(self, best: Round) -> IntArray:
        """Return what the fit proposes, or the best round where that leaves what was measured."""
        proposal = self._proposal()
        if not math.isfinite(best.makespan) or (best.distribution > self._limits).any():
            return proposal
        known = self._evidence.largest()
        return proposal if (proposal <= _BEYOND * known).all() else best.distribution

    def _checked(self, seconds: ArrayLike) -> FloatArray:
        times = np.where(self._next > 0, check_numbers(seconds, "seconds", self.workers), 0.0)
        good = (times > 0) | (self._next == 0)
        if not good.all():
            at = int(np.argmin(good))
            raise PartitionError(
                f"seconds[{at}] is {times[at]} for {self._next[at]} units; a number > 0 is needed, "
                "inf for a share that is too large"
            )
        return times

    def _heard(self) -> str:
        return f"{len(self._rounds)} round{'s' if len(self._rounds) != 1 else ''}"

    def _refusal(self) -> str:
        if self._reason is not None:
            why = f"stopped ({self._reason}) after {self._heard()}; read outcome"
        else:
            why = "no distribution is asked; call ask before each tell"
        story = "; ".join(self._story) or "nothing"
        return f"tell refused: {why}. What happened: {story}"


def _listed(values: IntArray | FloatArray) -> str:
    shown = ", ".join(f"{v:.6g}" for v in values[:8].tolist())
    return f"[{shown}{', ...' if values.size > 8 else ''}]"
