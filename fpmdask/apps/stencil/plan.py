"""Who iterates which rows, how often halos are exchanged, whether rows move. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fpmdask.apps.stencil.neighbours import spans_of
from fpmdask.models import ConstantModel, Model
from fpmdask.partition import geometric

# What CPU-quota periods make of the seconds of an iteration: less is not worth moving rows.
NOISE = 0.1


@dataclass(frozen=True)
class Speed:
    """What one worker has told after the first iterations.

    Parameters
    ----------
    row_seconds
        Of computing a row once; None where it has none.
    exchange_seconds
        Per iteration that it did not compute.
    byte_seconds
        Of bringing a byte of its rows into its buffers.
    """

    row_seconds: float | None
    exchange_seconds: float
    byte_seconds: float


def shared(
    units: int, models: Sequence[Model], limits: Sequence[float], least: int = 1
) -> list[int]:
    """Return the rows of each worker so that all finish together: none, or `least` and more.

    Raises
    ------
    PartitionError
        If they do not fit into the limits.

    Examples
    --------
    >>> shared(10, [ConstantModel(9.0), ConstantModel(1.0)], [10, 10], least=2)
    [10, 0]
    """
    most = [float(limit) if limit >= least else 0.0 for limit in limits]
    while True:
        shares = [int(share) for share in geometric(units, models, most)]
        few = [n for n, share in enumerate(shares) if 0 < share < least]
        if not few:
            return shares
        most[min(few, key=shares.__getitem__)] = 0.0


@dataclass(frozen=True)
class Revision:
    """The shares with which a run goes on, and why.

    Parameters
    ----------
    shares
        Worker → rows: others than before where that pays.
    saved, moving
        Predicted seconds: what the best shares save in all iterations to come, what moving takes.
    left
        Iterations to come.
    """

    shares: dict[str, int]
    saved: float = 0.0
    moving: float = 0.0
    left: int = 0

    @property
    def why(self) -> str:
        """In words."""
        return (
            f"{self.saved:.3g} s less in {self.left} iterations to come, {self.moving:.3g} s to "
            "move rows"
        )


def revised(
    shares: Mapping[str, int],
    told: Mapping[str, Speed],
    left: int,
    row_nbytes: int,
    limits: Mapping[str, float],
    least: int,
    *,
    equal: bool = False,
    exchange: float = 0.0,
) -> Revision:
    """Return the shares with which all finish together, the same ones where moving does not pay.

    Parameters
    ----------
    shares
        Worker → rows so far.
    told
        Worker → what it took.
    left
        Iterations to come.
    row_nbytes
        Bytes of a row that move.
    limits, least
        As for `shared`.
    equal
        Whether all get equally many rows, however fast they are.
    exchange
        Seconds that other shares add to each iteration.
    """
    known = [speed.row_seconds for speed in told.values() if speed.row_seconds]
    if not known:
        return Revision(dict(shares))
    middling = sorted(known)[len(known) // 2]
    seconds = {worker: told[worker].row_seconds or middling for worker in shares}
    models = [ConstantModel(1.0 if equal else 1 / seconds[worker]) for worker in shares]
    found = shared(sum(shares.values()), models, [limits[worker] for worker in shares], least)
    better = dict(zip(shares, found, strict=True))
    now, then = (max(seconds[w] * n for w, n in some.items()) for some in (shares, better))
    each = now - then - exchange
    cost = moving_seconds(shares, better, told, row_nbytes)
    pays = each >= NOISE * now and each * left > cost
    return Revision(better if pays else dict(shares), max(0.0, each * left), cost, left)


def moving_seconds(
    before: Mapping[str, int], after: Mapping[str, int], told: Mapping[str, Speed], row_nbytes: int
) -> float:
    """Return what new buffers take, all rows of which are brought into them."""
    old, new, cost = spans_of(before), spans_of(after), 0.0
    for worker, (low, high) in old.items():
        start, stop = new[worker]
        kept = max(0, min(high, stop) - max(low, start))
        # what it sends, and both its new buffers
        rows = (high - low - kept) + 2 * (stop - start)
        cost = max(cost, rows * row_nbytes * told[worker].byte_seconds)
    return cost


def exchange_every(
    told: Mapping[str, Speed],
    shares: Mapping[str, int],
    depth: int,
    most: int,
    worth: float = 0.0,
) -> int:
    """Return how many iterations are made between two exchanges of halos, at most `most`.

    Each exchange has a fixed cost c; with a halo for k iterations it is paid once in k, and each
    iteration computes depth · (k - 1) rows of the neighbours, too, in r seconds each. The sum is
    least at k = √(c / (depth · r)). It is 1 where that saves less than `worth` seconds per
    iteration.
    """
    workers = [worker for worker, rows in shares.items() if rows]
    rows = [seconds for worker in workers if (seconds := told[worker].row_seconds)]
    if not depth or len(workers) < 2 or not rows:
        return 1
    fixed, each = min(told[worker].exchange_seconds for worker in workers), depth * max(rows)
    found = min(math.isqrt(int(fixed / each)), most, min(shares[w] for w in workers) // depth)
    saved = fixed - fixed / max(1, found) - (found - 1) * each
    return found if found > 1 and saved > worth else 1
