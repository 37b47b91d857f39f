"""What a search has predicted: each distribution once, within a budget, and the best of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.errors import PartitionError
from fpmdask.mheta import checks
from fpmdask.mheta.checks import BoolArray, FloatArray, IntArray
from fpmdask.mheta.search.compositions import count
from fpmdask.mheta.search.result import Reason, SearchResult

Predict = Callable[[IntArray], FloatArray]


class Evaluations:
    """Predicts batches of distributions for a search and keeps what came out.

    Parameters
    ----------
    predict : callable
        int64 [K, p] to float64 [K], seconds, ``inf`` where infeasible.
    start : array_like of int, shape [m, p]
        Distributions of the same number of rows.
    budget : int
        Most distinct distributions that are predicted, at least as many as `start` has.

    Raises
    ------
    PartitionError
        If an argument is not allowed; on a call, if `predict` does not return seconds.

    Notes
    -----
    Making one predicts nothing. A distribution that was predicted before is not predicted again
    and costs nothing of the budget: a dictionary of the rows' bytes knows it. O(p) per
    distribution.

    Examples
    --------
    >>> seen = Evaluations(lambda d: d.max(axis=1), [[4, 0], [0, 4]], budget=3)
    >>> seen(seen.start), seen(np.array([[4, 0], [3, 1], [2, 2]])), seen.evaluations
    (array([4., 4.]), array([ 4.,  3., inf]), 3)
    >>> seen.result("converged").reason
    'budget'
    """

    def __init__(self, predict: Predict, start: ArrayLike, budget: float) -> None:
        if not callable(predict):
            raise PartitionError(
                f"predict is {predict!r}; a callable from int64 [K, p] to seconds [K] is needed, "
                "such as fpmdask.mheta.evaluator returns"
            )
        self.start: IntArray = _starts(start)
        self.rows, self.nodes = int(self.start[0].sum()), self.start.shape[1]
        self.budget = checks.count(budget, "budget")
        distinct = len(set(keys(self.start)))
        if self.budget < distinct:
            raise PartitionError(
                f"budget is {self.budget} for {distinct} distinct starts, which are predicted "
                f"first; give a budget of at least {distinct} or fewer starts"
            )
        self.evaluations = 0
        self._predict = predict
        self._best: IntArray = self.start[0]
        self._history: list[tuple[int, float]] = []
        self._index: dict[bytes, int] = {}
        self._known = np.empty((min(self.budget, 1024), self.nodes), np.int64)
        self._times = np.empty(len(self._known))

    @property
    def left(self) -> int:
        """How many more distributions may be predicted."""
        return self.budget - self.evaluations

    @property
    def exhausted(self) -> bool:
        """Whether every distribution of the rows was predicted."""
        return count(self.rows, self.nodes, self.evaluations) == self.evaluations

    @property
    def ended(self) -> bool:
        """Whether nothing more can be predicted."""
        return self.left == 0 or self.exhausted

    @property
    def best(self) -> IntArray:
        """The best distribution so far, the first predicted of equals, of shape [p]."""
        return self._best

    @property
    def seconds(self) -> float:
        """What the best distribution takes; ``inf`` before the first batch."""
        return self._history[-1][1] if self._history else np.inf

    @property
    def known(self) -> tuple[IntArray, FloatArray]:
        """What was predicted, in that order: distributions [K, p] and their seconds [K]."""
        size = len(self._index)
        return self._known[:size], self._times[:size]

    def __call__(self, distributions: IntArray) -> FloatArray:
        """Return the seconds of distributions, predicting those that are new in one batch.

        Parameters
        ----------
        distributions : ndarray of int64, shape [..., p]
            Each with as many rows as the starts.

        Returns
        -------
        ndarray of float64, shape [...]
            Also ``inf`` where the budget did not reach.
        """
        rows = distributions.reshape(-1, self.nodes)
        index, names = self._index, keys(rows)
        before, fresh = len(index), []
        for k, name in enumerate(names):
            if name not in index and len(index) < self.budget:
                index[name] = len(index)
                fresh.append(k)
        if fresh:
            self._reserve(len(index))
            self._known[before : len(index)] = new = rows[fresh]
            self._times[before : len(index)] = self.predict_new(new)
        at = np.array([index.get(name, -1) for name in names], np.int64)
        seconds: FloatArray = np.where(at < 0, np.inf, self._times[at])
        return seconds.reshape(distributions.shape[:-1])

    def is_known(self, rows: IntArray) -> BoolArray:
        """Return which distributions of a batch [K, p] were predicted before, bool [K]."""
        return np.array([name in self._index for name in keys(rows)], dtype=np.bool_)

    def predict_new(self, rows: IntArray) -> FloatArray:
        """Return the seconds of distributions that are known to be new, without keeping them.

        Parameters
        ----------
        rows : ndarray of int64, shape [K, p]
            Distinct, at most as many as are left.
        """
        rows = rows.view()
        rows.flags.writeable = False  # a predictor must not change what it is asked
        seconds = _checked(self._predict(rows), rows)
        below = np.minimum.accumulate(np.concatenate([[self.seconds], seconds]))
        better = np.flatnonzero(seconds < below[:-1]).tolist()
        if not self._history and 0 not in better:
            better = [0, *better]  # the first is the best so far, also if it is infeasible
        for k in better:
            self._history.append((self.evaluations + k + 1, float(seconds[k])))
        if better:
            self._best = rows[better[-1]].copy()
        self.evaluations += len(rows)
        return seconds

    def result(self, reason: Reason) -> SearchResult:
        """Return the best distribution and why the search ended.

        Parameters
        ----------
        reason : {"converged", "budget", "exhausted"}
            That of the search. If the budget is spent it is ``"budget"`` instead, and
            ``"exhausted"`` if every distribution was predicted.
        """
        found: Reason = "exhausted" if self.exhausted else "budget" if self.left == 0 else reason
        detail = getattr(self._predict, "prediction", None)
        return SearchResult(
            self._best,
            self.seconds,
            self.evaluations,
            tuple(self._history),
            found,
            detail(self._best.copy()) if callable(detail) else None,
        )

    def _reserve(self, size: int) -> None:
        """Make room for `size` distributions, at least twice as much as before."""
        if size <= len(self._known):
            return
        room = min(self.budget, max(size, 2 * len(self._known)))
        known, times = self._known, self._times
        self._known, self._times = np.empty((room, self.nodes), np.int64), np.empty(room)
        self._known[: len(known)], self._times[: len(times)] = known, times


def begin(
    predict: Predict, start: ArrayLike, rng: np.random.Generator, budget: float
) -> Evaluations:
    """Check the arguments of a search, predict `start` and return what it is to predict with."""
    seen = Evaluations(predict, start, budget)
    check_rng(rng)
    seen(seen.start)
    return seen


def check_rng(rng: Any) -> None:
    """Refuse anything but a Generator."""
    if not isinstance(rng, np.random.Generator):
        raise PartitionError(
            f"rng is {rng!r}; a numpy.random.Generator is needed: numpy.random.default_rng(seed)"
        )


def keys(rows: IntArray) -> list[bytes]:
    """Return the bytes of each distribution of a batch of shape [K, p]."""
    rows = np.ascontiguousarray(rows)
    whole = np.dtype((np.void, rows.itemsize * rows.shape[1]))
    found: Any = rows.view(whole).ravel()
    return list(found.tolist())


def _starts(start: ArrayLike) -> IntArray:
    found = checks.distributions(start, None, "start")
    if found.size == 0:
        raise PartitionError(
            f"start has the shape {found.shape}; at least one distribution over at least one node "
            "is needed, such as those of fpmdask.mheta.anchors"
        )
    if (most := found.sum(axis=1, dtype=np.float64).max()) > MOST_ROWS:
        raise PartitionError(f"start has {most:.0f} rows in sum; at most 2**60 are allowed")
    sums = found.sum(axis=1)
    if (other := np.flatnonzero(sums != sums[0])).size:
        raise PartitionError(
            f"start[{other[0]}] has {sums[other[0]]} rows in sum, start[0] has {sums[0]}; all "
            "starts of a search need the same number of rows"
        )
    return found.copy(order="C")


# Sums of rows, and of rows and nodes, are int64.
MOST_ROWS = 2.0**60


def _checked(found: Any, rows: IntArray) -> FloatArray:
    """Return what a predictor returned, if it is a time per distribution."""
    try:
        seconds = np.asarray(found)
    except ValueError as error:
        raise PartitionError(f"predict returned no array of seconds: {error}") from error
    if seconds.shape != (len(rows),) or seconds.dtype.kind not in "fiu":
        raise PartitionError(
            f"predict returned {seconds.dtype} values of shape {seconds.shape} for {len(rows)} "
            f"distributions; seconds of shape ({len(rows)},) are needed"
        )
    if not (good := seconds >= 0).all():
        at = int(np.argmin(good))
        raise PartitionError(
            f"predict returned {seconds[at]} s for {rows[at].tolist()}; at least 0 is allowed, "
            "inf where a distribution is infeasible"
        )
    return seconds.astype(np.float64)
