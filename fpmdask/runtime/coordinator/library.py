"""What was measured of workers: models, and sizes that took too long. On the scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np

from fpmdask.models import PiecewiseLinearModel
from fpmdask.models.measured import MEMORY
from fpmdask.runtime.identity import Fingerprint, KernelId, WorkerIdentity
from fpmdask.runtime.known_models import Known, KnownMachine, KnownModel

TOO_LARGE_SECONDS = 600.0
# Models and sizes that were too large: enough for a thousand workers and sixteen kernels; 20 MB.
MOST_MODELS = 1 << 14
# Points of one model; what lies nearer to its neighbour than any other makes room for a new one.
MOST_POINTS = 128

Group = tuple[KernelId, Fingerprint]
# Kernel, hardware, worker's name and start, and its model or the figures of MHETA's machine.
Learned = PiecewiseLinearModel | Mapping[str, Any]
Entry = tuple[KernelId, Fingerprint, str, str, Learned]


class ModelLibrary:
    """Every model that this coordinator has measured.

    A model measured on this very start of a worker is its own. A model of an earlier start, or of
    another worker with the same fingerprint, is a *prior*: right until one measurement says
    otherwise. Lookup and storing are O(1).

    A size that passed its deadline is remembered too, for `TOO_LARGE_SECONDS` and this start of the
    worker: the next run need not wait for the same deadline, and a worker that was held up by
    something else is tried again later.

    Workers come and go under new names, and every function of a user's is a kernel: what has not
    been used for longest is forgotten.

    Parameters
    ----------
    most
        Models that are kept, and sizes that were too large.
    most_points
        Points of each model.
    """

    def __init__(self, most: int = MOST_MODELS, most_points: int = MOST_POINTS) -> None:
        self._most, self._most_points = most, most_points
        # worker name -> (its start, model), the last one stored at the end
        self._models: dict[Group, dict[str, tuple[str, PiecewiseLinearModel]]] = {}
        # (group, worker name) of the models, the last used one last
        self._used: dict[tuple[Group, str], None] = {}
        self._too_large: dict[tuple[KernelId, WorkerIdentity], tuple[int, float, float]] = {}
        # (group, worker name) -> units of a model's points -> half-width of the seconds there
        self._half_widths: dict[tuple[Group, str], dict[float, float]] = {}
        # (group, worker name) -> (its start, figures of MHETA's machine), the last one stored last
        self._machines: dict[tuple[Group, str], tuple[str, Mapping[str, Any]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._models.values()))

    def find(
        self, kernel: KernelId, worker: WorkerIdentity, *, alike: bool = True
    ) -> tuple[PiecewiseLinearModel, bool] | None:
        """Return the best model known and whether it is the worker's own (else a prior).

        Without ``alike`` only one under the worker's name: its own, or of an earlier start.
        """
        known = self._models.get((kernel, worker.fingerprint))
        if not known or not (alike or worker.name in known):
            return None
        group: Group = kernel, worker.fingerprint
        name = worker.name if worker.name in known else next(reversed(known))
        self._use(group, name)
        start, model = known[name]
        return model, (name, start) == (worker.name, worker.start)

    def peek(self, kernel: KernelId, worker: WorkerIdentity) -> PiecewiseLinearModel | None:
        """Return what `find` would, for somebody who only looks: it does not count as used."""
        known = self._models.get((kernel, worker.fingerprint))
        if not known:
            return None
        return known[worker.name if worker.name in known else next(reversed(known))][1]

    def last_used(self, most: int) -> tuple[str, dict[str, PiecewiseLinearModel]]:
        """Return the kernel that was used last, and worker name → model, so many at most.

        O(most): models of one kernel are used one after the other.
        """
        found: dict[str, PiecewiseLinearModel] = {}
        last: KernelId | None = None
        for (kernel, fingerprint), name in islice(reversed(self._used), most):
            last = last or kernel
            if (kernel.name, kernel.parameters) == (last.name, last.parameters):
                found.setdefault(name, self._models[kernel, fingerprint][name][1])
        return ("" if last is None else last.name), found

    def store(
        self,
        kernel: KernelId,
        worker: WorkerIdentity,
        model: PiecewiseLinearModel,
        half_widths: Mapping[float, float] = MappingProxyType({}),
    ) -> None:
        """Keep ``model``; it replaces those of earlier starts under the same name.

        ``half_widths`` are those of the confidence intervals of what was measured since the model
        that is replaced. A point that was measured anew without one has none.
        """
        group: Group = kernel, worker.fingerprint
        known = self._models.setdefault(group, {})
        _, before = known.pop(worker.name, (None, None))
        model = thinned(model, self._most_points)
        known[worker.name] = worker.start, model
        earlier = self.half_widths(kernel, worker.fingerprint, worker.name)
        # replaced as a whole: threads that save read it
        told = half_widths_of(model, half_widths, before, earlier)
        self._half_widths[group, worker.name] = told
        self._use(group, worker.name)
        if len(self._used) > self._most:
            self._drop(*next(iter(self._used)))

    def half_widths(
        self, kernel: KernelId, fingerprint: Fingerprint, worker: str
    ) -> Mapping[float, float]:
        """Return units → half-width of the seconds there, of a worker's points that have one."""
        return self._half_widths.get(((kernel, fingerprint), worker), {})

    def store_prior(
        self,
        kernel: KernelId,
        worker: WorkerIdentity,
        model: PiecewiseLinearModel,
        half_widths: Mapping[float, float] = MappingProxyType({}),
    ) -> bool:
        """Keep ``model`` where none is known under the worker's name; tell whether it was kept."""
        if worker.name in self._models.get((kernel, worker.fingerprint), {}):
            return False
        self.store(kernel, worker, model, half_widths)
        return True

    def entries(self) -> list[tuple[KernelId, Fingerprint, str, str, PiecewiseLinearModel]]:
        """Return every model: (kernel, fingerprint, worker name, its start, model)."""
        return [
            (kernel, fingerprint, name, start, model)
            for (kernel, fingerprint), known in self._models.items()
            for name, (start, model) in known.items()
        ]

    def learned(self) -> list[Entry]:
        """Return every model, and MHETA's figures of every machine."""
        return [*self.entries(), *self.machines()]

    def known(self, entry: Entry, *, connected: bool) -> Known:
        """Return one of `learned` as a value. Threads may call this."""
        kernel, hardware, worker, _, learned = entry
        of = worker, kernel.name, kernel.implementation, kernel.parameters, hardware, connected
        if isinstance(learned, PiecewiseLinearModel):
            return KnownModel(*of, learned, dict(self.half_widths(kernel, hardware, worker)))
        return KnownMachine(*of, learned)

    def forget(self, kernel: str | None = None, worker: str | None = None) -> int:
        """Forget the models and machines of a kernel and a worker, by name, None for all.

        Return how many. Sizes that were too large are forgotten, too.
        """

        def meant(of: KernelId, name: str) -> bool:
            return kernel in (None, of.name) and worker in (None, name)

        gone = [(group, name) for group, name in self._used if meant(group[0], name)]
        for group, name in gone:
            self._drop(group, name)
        machines = [key for key in self._machines if meant(key[0][0], key[1])]
        for key in machines:
            del self._machines[key]
        for of, identity in [key for key in self._too_large if meant(key[0], key[1].name)]:
            del self._too_large[of, identity]
        return len(gone) + len(machines)

    def find_machine(self, kernel: KernelId, worker: WorkerIdentity) -> Mapping[str, Any] | None:
        """Return MHETA's figures of a worker, of this start of it or an earlier one."""
        found = self._machines.get(((kernel, worker.fingerprint), worker.name))
        return None if found is None else found[1]

    def store_machine(
        self,
        kernel: KernelId,
        worker: WorkerIdentity,
        figures: Mapping[str, Any],
        *,
        prior: bool = False,
    ) -> None:
        """Keep MHETA's figures of a worker; those of a ``prior`` where none are known."""
        key = (kernel, worker.fingerprint), worker.name
        if prior and key in self._machines:
            return
        self._machines.pop(key, None)
        self._machines[key] = worker.start, figures
        if len(self._machines) > self._most:
            del self._machines[next(iter(self._machines))]

    def forget_machine(self, kernel: KernelId, worker: WorkerIdentity) -> None:
        """Forget MHETA's figures of a worker, which a run has refuted."""
        self._machines.pop(((kernel, worker.fingerprint), worker.name), None)

    def machines(self) -> list[tuple[KernelId, Fingerprint, str, str, Mapping[str, Any]]]:
        """Return MHETA's figures of all: (kernel, fingerprint, worker name, its start, figures)."""
        return [
            (kernel, fingerprint, name, start, figures)
            for ((kernel, fingerprint), name), (start, figures) in self._machines.items()
        ]

    def _use(self, group: Group, name: str) -> None:
        """Make a model the last one to be forgotten."""
        self._used.pop((group, name), None)
        self._used[group, name] = None

    def _drop(self, group: Group, name: str) -> None:
        del self._used[group, name]
        del self._models[group][name]
        self._half_widths.pop((group, name), None)
        if not self._models[group]:
            del self._models[group]

    def limit(self, kernel: KernelId, worker: WorkerIdentity, deadline: float, now: float) -> float:
        """Return the most units that a measurement within ``deadline`` seconds may be tried with.

        ``now`` is the time in seconds on the clock of `found_too_large`.
        """
        units, allowed, when = self._too_large.get((kernel, worker), (0, 0.0, -math.inf))
        known = deadline <= allowed and now - when <= TOO_LARGE_SECONDS
        return units - 1 if known else math.inf

    def found_too_large(
        self, kernel: KernelId, worker: WorkerIdentity, units: int, deadline: float, now: float
    ) -> None:
        """Remember that ``units`` were not finished within ``deadline`` seconds."""
        if units <= self.limit(kernel, worker, deadline, now):
            self._too_large.pop((kernel, worker), None)
            self._too_large[kernel, worker] = (units, deadline, now)
            if len(self._too_large) > self._most:
                del self._too_large[next(iter(self._too_large))]


def half_widths_of(
    model: PiecewiseLinearModel,
    told: Mapping[float, float],
    before: PiecewiseLinearModel | None,
    earlier: Mapping[float, float],
) -> dict[float, float]:
    """Return units → half-width of the confidence interval of the seconds of a model's points.

    Parameters
    ----------
    model
        Its points.
    told
        Units → half-width of what was measured there since ``before``.
    before, earlier
        The model that was known, and half-widths of its points.

    Notes
    -----
    A point that has not changed keeps its half-width. One that was measured ``m`` times more, and
    stands for ``n`` measurements now, is the mean of both: its half-width is
    ``hypot((n - m) · earlier, m · told) / n``. O(points).

    Examples
    --------
    >>> before = PiecewiseLinearModel.from_points([10, 20], [1.0, 2.0])
    >>> half_widths_of(before.with_point(20, 2.4), {20: 0.3}, before, {10: 0.1, 20: 0.4})
    {10.0: 0.1, 20.0: 0.25}
    >>> half_widths_of(before.with_point(20, 2.4), {}, before, {10: 0.1, 20: 0.4})
    {10.0: 0.1}
    """
    known = {} if before is None else _points(before)
    found = {}
    for units, (seconds, count) in _points(model).items():
        was, half_width = known.get(units), told.get(units)
        if was == (seconds, count):
            half_width = earlier.get(units)
        elif was is not None and half_width is not None and (count > was[1] or count == MEMORY):
            times, old = max(1.0, count - was[1]), earlier.get(units)
            both = None if old is None else math.hypot((count - times) * old, times * half_width)
            half_width = None if both is None else both / count
        if half_width is not None:
            found[units] = half_width
    return found


def _points(model: PiecewiseLinearModel) -> dict[float, tuple[float, float]]:
    """Return units → seconds and how many measurements they stand for."""
    columns = (of.tolist() for of in (model.units, model.seconds, model.counts))
    return {units: (seconds, count) for units, seconds, count in zip(*columns, strict=True)}


def thinned(model: PiecewiseLinearModel, most: int) -> PiecewiseLinearModel:
    """Return a model of ``most`` points at most: of the two that are nearest in ratio, one goes.

    It is the one that stands for fewer measurements. O(points) for each that goes.

    Examples
    --------
    >>> model = PiecewiseLinearModel.from_points([10, 100, 101, 900], [1.0, 10.0, 10.1, 90.0])
    >>> thinned(model, 3).points[0].tolist()
    [10.0, 101.0, 900.0]
    """
    units, seconds, counts = model.units, model.seconds, model.counts
    if len(units) <= most:
        return model
    while len(units) > most:
        near = int(np.argmin(units[1:] / units[:-1]))
        gone = near if counts[near] <= counts[near + 1] else near + 1
        units, seconds, counts = (np.delete(of, gone) for of in (units, seconds, counts))
    return PiecewiseLinearModel(units, seconds, counts)
