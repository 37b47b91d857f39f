"""A kernel that takes its seconds from a model, so that experiments run without hardware."""

import math
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fpmdask import models as _models
from fpmdask.errors import KernelError, PartitionError
from fpmdask.timing.deadline import Deadline
from fpmdask.timing.kernel import WorkerContext

# Stands for every worker that has no entry of its own
ANY_WORKER = "*"
# Between two looks at the deadline while asleep
_NAP_SECONDS = 0.05


class EmulatedKernel:
    """Says that it took the seconds that a model has for this worker.

    Parameters
    ----------
    context : WorkerContext
        Its name chooses the model.
    models : mapping of str to JSON
        Worker name, or ``"*"`` for all others, to what `Model.to_json` returns.
    limits : mapping of str to int, optional
        Worker name, or ``"*"``, to the most units that fit: more take ``inf`` seconds.
    width : float, optional
        Where a model is a `SurfaceModel`: the width at which it is cut.
    noise : float, optional
        Relative standard deviation of each run, >= 0; lognormal with mean 1.
    seed : int, optional
        Of the noise, >= 0. Worker, units and the number of setups before are mixed in: equal
        histories give equal noise, and no two sizes share theirs.
    sleep : bool, optional
        Whether `run` also sleeps the seconds that it returns, looking at its deadline.
    sleeper : callable, optional
        What sleeps; not part of the parameters.

    Raises
    ------
    KernelError
        If there is no model for this worker, or a value is out of range.

    Examples
    --------
    >>> from fpmdask.models import ConstantModel
    >>> from fpmdask.timing import measure
    >>> kernel = EmulatedKernel(WorkerContext("a"), {"a": ConstantModel(50.0).to_json()})
    >>> measure(kernel, 100).seconds
    2.0
    """

    name = "emulated"
    implementation = "model"

    def __init__(
        self,
        context: WorkerContext,
        models: Mapping[str, Mapping[str, Any]],
        *,
        limits: Mapping[str, int] | None = None,
        width: float | None = None,
        noise: float = 0.0,
        seed: int = 0,
        sleep: bool = False,
        sleeper: Callable[[float], object] = time.sleep,
    ) -> None:
        if not 0 <= noise < math.inf or seed < 0:
            raise KernelError(
                f"emulated kernel with noise {noise} and seed {seed}; both must be >= 0 and finite"
            )
        worker = context.name
        own = _entry(models, worker)
        if own is None:
            raise KernelError(
                f"no model for worker {worker!r}; there are {', '.join(sorted(models)) or 'none'}. "
                f"Add it, or {ANY_WORKER!r} for all others"
            )
        limit = _entry(limits or {}, worker)
        self._model = _cut(own, width, worker)
        self._limit = math.inf if limit is None else limit
        self._noise = noise
        self._seed = [seed, zlib.crc32(worker.encode())]
        self._setups = 0
        self._seconds = 0.0
        self._random = np.random.default_rng(self._seed)
        self._sleeper = sleeper if sleep else None
        self.deadline: Deadline | None = None
        # Enough to make an equal kernel on this worker
        self.parameters: Mapping[str, object] = {
            "models": {worker: dict(own)},
            "limits": {} if limit is None else {worker: limit},
            "width": width,
            "noise": noise,
            "seed": seed,
            "sleep": sleep,
        }

    def setup(self, units: int) -> None:
        """Look up the seconds of `units` units."""
        self._seconds = math.inf if units > self._limit else float(self._model.time(units))
        self._random = np.random.default_rng([*self._seed, units, self._setups])
        self._setups += 1

    def run(self) -> float:
        """Return the seconds, with noise, after sleeping them if so asked."""
        seconds = self._seconds
        if self._noise:
            variance = math.log1p(self._noise**2)  # of the logarithm
            spread = math.sqrt(variance) * self._random.standard_normal()
            seconds *= math.exp(spread - variance / 2)
        if self._sleeper is not None and math.isfinite(seconds):
            self._sleep(self._sleeper, seconds)
        return seconds

    def _sleep(self, sleeper: Callable[[float], object], seconds: float) -> None:
        left = seconds
        while left > 0:
            if self.deadline is not None:
                self.deadline.check()
            nap = min(left, _NAP_SECONDS)
            sleeper(nap)
            left -= nap

    def teardown(self) -> None:
        """Nothing was made."""

    def complexity(self, units: int) -> float:
        """Return the units themselves."""
        return float(units)

    def __repr__(self) -> str:
        return f"EmulatedKernel({self._model!r})"


def _entry(entries: Mapping[str, Any], worker: str) -> Any:
    return entries.get(worker, entries.get(ANY_WORKER))


def _cut(data: Mapping[str, Any], width: float | None, worker: str) -> Any:
    """Return a model in one parameter."""
    try:
        model = _models.from_json(data)
    except PartitionError as error:
        raise KernelError(f"the model of worker {worker!r} cannot be used: {error}") from error
    if not hasattr(model, "slice"):
        return model
    if width is None:
        raise KernelError(
            f"the model of worker {worker!r} is a surface; give the width at which it is cut"
        )
    return model.slice(width)
