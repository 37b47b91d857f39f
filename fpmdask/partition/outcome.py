"""What DFPA measured and where it ended: values without behaviour."""

from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fpmdask.models import Model
from fpmdask.partition.validate import FloatArray, IntArray

Reason = Literal["balanced", "stagnant", "max_rounds"]
Number = TypeVar("Number", np.int64, np.float64)


def read_only(values: NDArray[Number]) -> NDArray[Number]:
    """Return a copy that cannot be written to."""
    copy = values.copy()
    copy.flags.writeable = False
    return copy


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One measured distribution.

    Parameters
    ----------
    distribution : ndarray of int64
        Units per worker; read-only.
    seconds : ndarray of float64
        What each worker took; 0 where it had no units, ``inf`` where its share was too large;
        read-only.
    imbalance : float
        See `fpmdask.partition.imbalance`; ``inf`` if a share was too large.
    """

    distribution: IntArray
    seconds: FloatArray
    imbalance: float

    @property
    def makespan(self) -> float:
        """The largest time in seconds; ``inf`` if a share was too large."""
        return float(self.seconds.max())


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The best round so far, all rounds, and why there is no further one.

    Parameters
    ----------
    distribution : ndarray of int64
        Units per worker of the round that met epsilon, otherwise of the round with the smallest
        measured makespan; read-only.
    seconds : ndarray of float64
        The times measured in that round; read-only.
    imbalance : float
        The imbalance measured in that round.
    rounds : tuple of Round
        All rounds in order.
    reason : {"balanced", "stagnant", "max_rounds"} or None
        Why it stopped: a round met epsilon, no proposal is left that would lower the makespan by
        more than the resolution and `least_gain` (of a thorough search: by more than one unit's
        step), or the rounds are used up. None while it runs.
    models : tuple of Model or None
        What is known of each worker, measurements included; None for one that was never measured
        and had no model.
    proposal : ndarray of int64
        The best distribution by all measurements together; read-only. It was not measured itself,
        but where measurements are noisy it is nearer to the optimum than any single round: six
        workers, 5 % of noise, three rounds: 1.04 times the optimum, the best round 1.05 times. It
        equals `distribution` where it would give a worker more than a tenth above the largest size
        measured on it.
    """

    distribution: IntArray
    seconds: FloatArray
    imbalance: float
    rounds: tuple[Round, ...]
    reason: Reason | None
    models: tuple[Model | None, ...]
    proposal: IntArray

    @property
    def makespan(self) -> float:
        """The largest of `seconds`."""
        return float(self.seconds.max())
