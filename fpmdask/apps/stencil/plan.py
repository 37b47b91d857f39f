"""Who iterates which rows, how often halos are exchanged, whether rows move. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from fpmdask.apps.stencil.call_costs import LEAST_SECONDS
from fpmdask.apps.stencil.neighbours import open_ends, spans_of
from fpmdask.models import AnalyticModel, ConstantModel, Model
from fpmdask.partition import geometric

# What CPU-quota periods make of the seconds of an iteration: less is not worth moving rows.
NOISE = 0.1
# A fixed cost below this part of an iteration is not told from noise.
LEAST_FIXED = 0.02


@dataclass(frozen=True)
class Speed:
    """What one worker has told after the first iterations.

    Parameters
    ----------
    row_seconds
        Of computing a row once; None where it has none.
    exchange_seconds
        Of an exchange of halos, with all that it waited.
    byte_seconds
        Of bringing a byte of its rows into its buffers.
    call_seconds
        Of a call of the update beside its rows, None where that was not told from them.
    rows, calls
        Of the iteration of which `row_seconds` is a mean, neighbours' rows that it computed among
        them, with the fixed cost of its calls; 0 calls where that is not in it.
    """

    row_seconds: float | None
    exchange_seconds: float
    byte_seconds: float
    call_seconds: float | None = None
    rows: float = 0
    calls: float = 0


@dataclass(frozen=True)
class Cost:
    """What an iteration takes a worker: seconds that do not depend on its rows, and of a row.

    Examples
    --------
    >>> Cost(0.5, 0.01).seconds(10), Cost(0.5, 0.01).seconds(0)
    (0.6, 0.0)
    """

    fixed: float
    row: float

    def seconds(self, rows: int) -> float:
        """Return what it takes with so many rows."""
        return self.fixed + self.row * rows if rows else 0.0

    def model(self, rows: float) -> Model:
        """Return this as a model, for about so many rows."""
        if self.fixed <= LEAST_FIXED * self.row * rows:
            return ConstantModel(1 / (self.row + self.fixed / max(1.0, rows)))
        more = self.fixed / self.row
        return AnalyticModel(lambda units: np.where(units > 0, units + more, 0.0), 1 / self.row)


def costs_of(
    told: Mapping[str, Speed], shares: Mapping[str, int], depth: int, *, wraps: bool
) -> dict[str, Cost]:
    """Return what an iteration takes each worker; {} where none has told what a row takes.

    Parameters
    ----------
    told
        Worker -> what it took. A call of one that does not know its fixed cost costs as many rows
        as those of the others, in the median: it has the same update.
    shares
        Worker -> rows so far, of all that may get some.
    depth, wraps
        Of the halo, and whether the last worker and the first one are neighbours: the rows at an
        end that has a neighbour are a call of their own, with its fixed cost.

    Examples
    --------
    >>> told = {"a": Speed(0.75, 0, 0, 25.0, 100, 2), "b": Speed(1.5, 0, 0, None, 100, 2)}
    >>> costs_of(told, {"a": 100, "b": 100}, 1, wraps=False)
    {'a': Cost(fixed=50.0, row=0.25), 'b': Cost(fixed=100.0, row=0.5)}
    """
    rows = {}
    for worker, one in told.items():
        if one.row_seconds and one.call_seconds is not None:
            rest = one.row_seconds - one.call_seconds * one.calls / max(1, one.rows)
            rows[worker] = max(LEAST_SECONDS, rest)
    extra = (
        median((told[w].call_seconds or 0.0) / each for w, each in rows.items()) if rows else 0.0
    )
    for worker, one in told.items():
        if one.row_seconds and worker not in rows:
            rows[worker] = one.row_seconds / (1 + extra * one.calls / max(1, one.rows))
    if not rows:
        return {}
    middling = sorted(rows.values())[len(rows) // 2]
    found = {}
    for worker, ends in open_ends(shares, wraps=wraps).items():
        each, call = rows.get(worker, middling), told[worker].call_seconds
        fixed = (extra * each if call is None else call) * (1 + (ends if depth else 0))
        found[worker] = Cost(fixed, each)
    return found


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
    alone
        Whether one worker has all rows since messages would take longer than others save.
    """

    shares: dict[str, int]
    saved: float = 0.0
    moving: float = 0.0
    left: int = 0
    alone: bool = False

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
    alone: Mapping[str, float] | None = None,
    stop: float = 0.0,
    depth: int = 0,
    wraps: bool = False,
    most_every: int = 1,
) -> Revision:
    """Return the shares with which all finish together, the same ones where moving does not pay.

    Where an exchange of halos takes longer than what others save, one worker may get all rows.

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
    alone
        Worker → rows that it may have if it gets all; None: nobody may.
    stop
        What moving takes beside the rows: the whole team stops for it.
    depth, wraps
        As for `costs_of`.
    most_every
        As for `exchange_every`.
    """
    costs = costs_of(told, shares, depth, wraps=wraps)
    if not costs:
        return Revision(dict(shares))

    def exchanged(rows: Mapping[str, int]) -> float:
        return exchange_cost(told, rows, depth, min(most_every, left), wraps=wraps)[1]

    units = sum(shares.values())
    models = [
        ConstantModel(1.0) if equal else costs[worker].model(units / len(shares))
        for worker in shares
    ]
    found = shared(units, models, [limits[worker] for worker in shares], least)
    better = dict(zip(shares, found, strict=True))
    # those of now are measured, whatever it is that takes them so long
    now = max((told[w].row_seconds or costs[w].row) * n for w, n in shares.items())
    now += exchanged(shares)
    then = max(costs[w].seconds(n) for w, n in better.items()) + exchanged(better)
    single = False
    for worker in [w for w, most in (alone or {}).items() if w in shares and most >= units]:
        seconds = costs_of(told, {worker: units}, depth, wraps=wraps)[worker].seconds(units)
        if seconds < then:
            better, then = {w: units if w == worker else 0 for w in shares}, seconds
            single = True
    each = now - then
    cost = stop + moving_seconds(shares, better, told, row_nbytes)
    pays = each >= NOISE * now and each * left > cost
    rows = better if pays else dict(shares)
    return Revision(rows, max(0.0, each * left), cost, left, single and pays)


def moving_seconds(
    before: Mapping[str, int], after: Mapping[str, int], told: Mapping[str, Speed], row_nbytes: int
) -> float:
    """Return what new buffers take, all rows of which are brought into them."""
    old, new, cost = spans_of(before), spans_of(after), 0.0
    for worker, (low, high) in old.items():
        start, stop = new[worker]
        kept = max(0, min(high, stop) - max(low, start))
        rows = (high - low - kept) + (stop - start)  # what it sends, and its new buffer
        cost = max(cost, rows * row_nbytes * told[worker].byte_seconds)
    return cost


def exchange_cost(
    told: Mapping[str, Speed], shares: Mapping[str, int], depth: int, most: int, *, wraps: bool
) -> tuple[int, float]:
    """Return how many iterations are made between two exchanges, and what these add to each.

    The parameters are those of `exchange_every`, which has the formula. Messages that take less
    than computing are hidden by it: they come meanwhile, and what is waited then is for workers
    that end later. The calls for the rows at the ends, once in each iteration, are no part of what
    is returned: they are in `costs_of`.

    Examples
    --------
    >>> told = dict.fromkeys("ab", Speed(0.001, 0.1, 0.0))
    >>> every, seconds = exchange_cost(told, {"a": 40, "b": 60}, 1, 64, wraps=False)
    >>> every, round(seconds, 6), exchange_cost(told, {"a": 0, "b": 60}, 1, 64, wraps=False)
    (10, 0.019, (1, 0.0))
    """
    found = _exchange(told, shares, depth, wraps=wraps)
    if found is None:
        return 1, 0.0
    best = math.isqrt(int(found.fixed / found.each))
    every = max(1, min(best, most, found.most))
    return every, found.seconds(every)


@dataclass(frozen=True)
class _Exchange:
    """What an exchange takes, with an edge's call, and a neighbour's row; and the call itself."""

    fixed: float
    each: float
    edge: float
    most: int

    def seconds(self, every: int) -> float:
        return self.fixed / every + (every - 1) * self.each - self.edge


def _exchange(
    told: Mapping[str, Speed], shares: Mapping[str, int], depth: int, *, wraps: bool
) -> _Exchange | None:
    """Return what makes up the cost of exchanges, None where there are none."""
    workers = [worker for worker, rows in shares.items() if rows]
    costs = costs_of(told, shares, depth, wraps=wraps)
    if not depth or len(workers) < 2 or not costs:
        return None
    edge = min(costs[worker].fixed / 2 for worker in workers)  # one of two calls, at least
    longest = max(costs[worker].seconds(shares[worker]) for worker in workers)
    exchange = min(told[worker].exchange_seconds for worker in workers)
    fixed = edge + (exchange if exchange > longest else 0.0)
    each = depth * max(costs[worker].row for worker in workers)
    return _Exchange(fixed, each, edge, min(shares[w] for w in workers) // depth)


def exchange_every(
    told: Mapping[str, Speed],
    shares: Mapping[str, int],
    depth: int,
    most: int,
    worth: float = 0.0,
    *,
    now: int = 1,
    wraps: bool = False,
) -> int:
    """Return how many iterations are made between two exchanges of halos, at most `most`.

    Each exchange has a fixed cost c, and that of the calls for the rows at the ends; with a halo
    for k iterations it is paid once in k, and each iteration computes depth · (k - 1) rows of the
    neighbours, too, in r seconds each. The sum is least at k = √(c / (depth · r)). It stays as
    it is `now`, if that is possible, where another number saves less than `worth` seconds per
    iteration.
    """
    every, seconds = exchange_cost(told, shares, depth, most, wraps=wraps)
    costs = _exchange(told, shares, depth, wraps=wraps)
    if costs is None:
        return 1
    now = max(1, min(now, most, costs.most))
    return every if costs.seconds(now) - seconds > worth else now
