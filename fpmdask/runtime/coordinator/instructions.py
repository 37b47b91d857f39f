"""What a measurement takes in and gives out: immutable values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fpmdask.errors import MeasuringError
from fpmdask.models import PiecewiseLinearModel, from_json

# A prior and a measurement are both off by as much as the imbalance that counts as balanced: where
# they disagree by more than so many of it, the prior is wrong.
PRIOR_EPSILONS = 2


@dataclass(frozen=True)
class Member:
    """A worker that takes part: its limit in units (inf: none), its model, and whose that is.

    ``prior``: the model is of another worker or an earlier start, to be confirmed or dropped.
    ``alike``: equal for workers of equal hardware; ``cores``: that it computes with.
    """

    name: str
    limit: float = math.inf
    model: PiecewiseLinearModel | None = None
    prior: bool = False
    alike: str = ""
    cores: float = 1.0

    def refuted(self, units: int, seconds: float, epsilon: float) -> bool:
        """Return whether the model is a prior that a measurement shows to be wrong."""
        if not self.prior or self.model is None:
            return False
        expected = self.model.time(units)
        return not abs(seconds - expected) <= PRIOR_EPSILONS * epsilon * expected

    def measured(self, units: int, seconds: float, *, afresh: bool) -> Member:
        """Return the member with one more measurement, or (``afresh``) with nothing else.

        ``inf`` seconds make one unit less the limit.
        """
        known = None if afresh else self.model
        if math.isinf(seconds):
            return replace(self, limit=min(self.limit, units - 1), model=known)
        if known is None:
            return replace(self, model=PiecewiseLinearModel.from_points([units], [seconds]))
        return replace(self, model=known.with_point(units, seconds))

    def to_json(self) -> dict[str, Any]:
        """Return plain data (no limit is None)."""
        return {
            "name": self.name,
            "limit": None if math.isinf(self.limit) else self.limit,
            "model": None if self.model is None else self.model.to_json(),
            "prior": self.prior,
            "alike": self.alike,
            "cores": self.cores,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Member:
        """Rebuild a member from `to_json`."""
        model = None if data["model"] is None else from_json(data["model"])
        if model is not None and not isinstance(model, PiecewiseLinearModel):
            raise MeasuringError(
                f"found a {type(model).__name__} as a worker's model; only piecewise linear "
                "models are measured"
            )
        limit = math.inf if data["limit"] is None else float(data["limit"])
        return cls(
            str(data["name"]),
            limit,
            model,
            bool(data["prior"]),
            str(data.get("alike", "")),  # this and cores are missing in older logs
            float(data.get("cores", 1.0)),
        )


@dataclass(frozen=True)
class Measure:
    """Instruction: time ``units`` units on ``worker`` and answer with the round's number."""

    worker: str
    units: int
    round: int


@dataclass(frozen=True)
class Conclude:
    """Instruction: the measurement is over; read `Measuring.result` or `Measuring.failure`."""


Instruction = Measure | Conclude


@dataclass(frozen=True)
class RoundRecord:
    """One round: units and seconds per worker; None where no answer came."""

    number: int
    units: Mapping[str, int]
    seconds: Mapping[str, float | None]
    imbalance: float | None


@dataclass(frozen=True)
class Result:
    """What was found: units and (measured or predicted) seconds per worker, and why it ended.

    ``proposal``: units by all measurements together, see `fpmdask.partition.Outcome`.
    """

    distribution: Mapping[str, int]
    seconds: Mapping[str, float]
    imbalance: float
    reason: str
    proposal: Mapping[str, int]
