"""Machines that runs have measured: kept per worker in the coordinator's library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.instructions import PRIOR_EPSILONS
from fpmdask.runtime.identity import KernelId, WorkerIdentity, canonical

if TYPE_CHECKING:
    from fpmdask.apps.stencil.planner import Planner

NAME = "stencil.machine"
WHY = "by the figures of an earlier run, nothing was measured before this one: "


class KnownMachines:
    """What the library has of MHETA's machine, for the workers of a run.

    Parameters
    ----------
    context
        The run.

    Attributes
    ----------
    used : bool
        Whether the run goes by it.
    """

    def __init__(self, context: RunContext) -> None:
        self._context, self._library = context, context.coordinator.library
        self.used = False

    def of(self, planner: Planner, workers: Sequence[str]) -> dict[str, Any] | None:
        """Return the machine of these workers, None unless all of them are known."""
        from fpmdask.apps.stencil.node_figures import put_together

        keys = [self._key(planner, worker) for worker in workers]
        figures = [self._library.find_machine(*key) for key in keys]
        known = [one for one in figures if one is not None]
        if len(known) < len(keys):
            return None
        names = [self._context.name(worker) for worker in workers]
        return put_together(known, planner.program, names)

    def keep(
        self, planner: Planner, workers: Sequence[str], phases: Sequence[Mapping[str, Any]]
    ) -> None:
        """Keep what a run has learned of its workers' machine.

        One that the run went by is forgotten where the iterations took another time than it had
        predicted, by more than `PRIOR_EPSILONS` times the imbalance that counts as balanced.
        """
        from fpmdask.apps.stencil.node_figures import taken_apart

        there = [worker for worker in workers if worker in self._context.workers]
        epsilon = PRIOR_EPSILONS * self._context.spec["measuring"]["epsilon"]
        if planner.figures is None or (self.used and refuted(phases, epsilon)):
            for worker in there:
                self._library.forget_machine(*self._key(planner, worker))
            return
        for worker, one in zip(workers, taken_apart(*planner.figures), strict=True):
            if worker in there:
                self._library.store_machine(*self._key(planner, worker), one)

    def _key(self, planner: Planner, worker: str) -> tuple[KernelId, WorkerIdentity]:
        implementation = self._context.members.kernel_ids[worker].implementation
        parameters = canonical({"program": planner.program.to_dict()})
        return KernelId(NAME, implementation, parameters), self._context.workers[worker]


def refuted(phases: Sequence[Mapping[str, Any]], epsilon: float) -> bool:
    """Tell whether iterations took another time than the machine that was known predicts.

    Parameters
    ----------
    phases
        Of `fpmdask.runtime.report.Report.mheta`. The last one counts: those before are what
        corrected it.
    epsilon
        Relative.

    Examples
    --------
    >>> phase = {"predicted": {"seconds": [1.0, 2.0]}, "measured": {"seconds": [2.2, 1.0]}}
    >>> refuted([{**phase, "count": 9}], 0.2), refuted([{**phase, "count": 9}], 0.05)
    (False, True)
    """
    if not phases or "predicted" not in phases[-1] or phases[-1]["count"] < 2:
        return False  # one iteration is the first of its distribution, and not typical
    expected, took = (max(phases[-1][side]["seconds"]) for side in ("predicted", "measured"))
    return not abs(took - expected) <= epsilon * expected
