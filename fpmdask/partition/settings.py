"""Checks of what is set once for a run of DFPA."""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from fpmdask.errors import PartitionError
from fpmdask.models import Model


def check_models(models: Any, workers: int) -> list[Model | None]:
    """Return one model or None per worker.

    Parameters
    ----------
    models : sequence of Model or None, optional
        In worker order.
    workers : int
        How many are expected.

    Returns
    -------
    list of Model or None

    Raises
    ------
    PartitionError
        If their number is wrong or one is something else.
    """
    if models is None:
        return [None] * workers
    if not isinstance(models, Sequence | np.ndarray):
        raise PartitionError(f"models is {models!r}; give a model or None for each worker")
    known = list(models)
    if len(known) != workers:
        raise PartitionError(
            f"{len(known)} models found for {workers} workers; give one each, None where unknown"
        )
    for i, model in enumerate(known):
        if model is not None and not isinstance(model, Model):
            raise PartitionError(
                f"models[{i}] is a {type(model).__name__}; a model from fpmdask.models or None "
                "is needed"
            )
    return known


def check_epsilon(epsilon: Any) -> float:
    """Return `epsilon`, refusing anything but a finite number > 0.

    Parameters
    ----------
    epsilon : float
        Largest imbalance that is good enough.

    Returns
    -------
    float

    Raises
    ------
    PartitionError
        If it is anything else.
    """
    if not _is_number(epsilon) or not 0 < epsilon < math.inf:
        raise PartitionError(f"epsilon must be a finite number > 0, got {epsilon!r}; try 0.1")
    return float(epsilon)


def check_gain(least_gain: Any) -> float:
    """Return `least_gain`, refusing anything but a finite number >= 0.

    Parameters
    ----------
    least_gain : float
        Relative gain in makespan that pays for another round.

    Returns
    -------
    float

    Raises
    ------
    PartitionError
        If it is anything else.
    """
    if not _is_number(least_gain) or not 0 <= least_gain < math.inf:
        raise PartitionError(
            f"least_gain must be a finite number >= 0, got {least_gain!r}; try 0.05"
        )
    return float(least_gain)


def check_rounds(max_rounds: Any) -> int:
    """Return `max_rounds`, refusing anything but an integer of at least 1.

    Parameters
    ----------
    max_rounds : int
        Most rounds to measure.

    Returns
    -------
    int

    Raises
    ------
    PartitionError
        If it is anything else.
    """
    if isinstance(max_rounds, bool) or not isinstance(max_rounds, Integral) or max_rounds < 1:
        raise PartitionError(f"max_rounds must be an int of at least 1, got {max_rounds!r}")
    return int(max_rounds)


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int | np.floating | np.integer) and not isinstance(value, bool)
