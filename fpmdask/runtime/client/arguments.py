"""Arguments of the balancer's methods, checked where they are given; configuration fills gaps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, cast

import numpy as np

from fpmdask import config
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.partition import Dfpa
from fpmdask.timing import TimingPolicy


def measuring(
    epsilon: float | None,
    max_rounds: int | None,
    timing: TimingPolicy | None,
    deadline: str | float | None,
) -> dict[str, Any]:
    """Return the settings of `fpmdask.runtime.coordinator.rounds.measure`, checked."""
    thorough = epsilon is not None
    epsilon = config.setting("epsilon", epsilon)
    max_rounds = config.setting("max-rounds", max_rounds)
    Dfpa(1, 1, epsilon=epsilon, max_rounds=max_rounds)  # refuses what DFPA would refuse later
    try:
        limit = config.seconds("deadline", deadline)
    except CoordinatorError as error:
        raise PartitionError(str(error)) from error
    if not limit > 0:
        raise PartitionError(f"deadline = {deadline!r}; it must be a duration > 0")
    if timing is None:
        timing = TimingPolicy(**config.timing_settings())
    if not isinstance(timing, TimingPolicy):
        raise PartitionError(f"timing = {timing!r}; give a fpmdask.timing.TimingPolicy")
    return {
        "epsilon": float(cast(float, epsilon)),
        "thorough": thorough,
        "max_rounds": int(cast(int, max_rounds)),
        "policy": timing.to_json(),
        "deadline": limit,
        "hang": config.seconds("hang"),
    }


def checked_limits(limits: Any) -> dict[str, float] | None:
    """Return the most units per worker name, refusing what is no number >= 0."""
    if limits is None:
        return None
    if not isinstance(limits, Mapping):
        raise PartitionError(f"limits = {limits!r}; give a mapping of worker name to most units")
    for name, limit in limits.items():
        if isinstance(limit, bool) or not isinstance(limit, Real) or not float(limit) >= 0:
            raise PartitionError(f"the limit of {name} is {limit!r}; it must be a number >= 0")
    return {str(name): float(limit) for name, limit in limits.items()}


def checked_scout(scout: Any) -> int:
    """Return the units of the scouting round, refusing what is no int >= 0."""
    if isinstance(scout, bool) or not isinstance(scout, Integral) or scout < 0:
        raise PartitionError(f"scout = {scout!r}; it must be an int >= 0, 0 for no scouting")
    return int(scout)


def plain(value: Any, name: str) -> Any:
    """Return a copy of plain data: what a message carries as it is.

    Raises
    ------
    PartitionError
        Naming the place of what is something else.

    Examples
    --------
    >>> plain({"shape": (2, 3), "key": b"x"}, "spec")
    {'shape': [2, 3], 'key': b'x'}
    """
    if value is None or isinstance(value, bool | float | str | bytes):
        return value
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 64:
            return value
        raise PartitionError(f"{name} = {value}; messages carry integers of 64 bits")
    if isinstance(value, list | tuple):
        return [plain(one, f"{name}[{n}]") for n, one in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain(one, f"{name}[{key!r}]") for key, one in value.items()}
    raise PartitionError(
        f"{name} is a {type(value).__name__}; give numbers, strings, bytes, lists and dictionaries "
        "with strings for keys"
    )


def by_worker(given: Any) -> Any:
    """Return a report's distribution as worker name → units, anything else as it is."""
    if hasattr(given, "workers") and hasattr(given, "distribution"):
        units = np.asarray(given.distribution).tolist()
        return dict(zip(given.workers, units, strict=True))
    return given


def check_sum(parts: Iterable[float], count: float) -> None:
    """Refuse a distribution of another number of rows; any where theirs is not known (NaN).

    Raises
    ------
    PartitionError
        With both numbers.
    """
    if not math.isnan(count) and (found := sum(parts)) != count:
        raise PartitionError(
            f"distribution has {found} rows in all, there are {count}; give as many"
        )


def rows_by_worker(given: Any, count: float) -> dict[str, int] | None:
    """Return rows per worker name of a mapping or a report, None of None.

    Raises
    ------
    PartitionError
        For anything else, and where they are not as many as there are (NaN: not known).

    Examples
    --------
    >>> rows_by_worker({"a": 3, "b": 2}, 5)
    {'a': 3, 'b': 2}
    """
    if given is None:
        return None
    given = by_worker(given)
    if not isinstance(given, Mapping):
        raise PartitionError(f"distribution = {given!r}; give worker name → rows, or a report")
    for name, rows in given.items():
        if isinstance(rows, bool) or not isinstance(rows, Integral) or rows < 0:
            raise PartitionError(
                f"distribution gives {name} {rows!r} rows; give an int >= 0 for each worker"
            )
    check_sum(given.values(), count)
    return {str(name): int(rows) for name, rows in given.items()}
