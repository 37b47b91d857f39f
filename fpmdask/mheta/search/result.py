"""What every search returns."""

from dataclasses import dataclass
from typing import Any, Literal

from fpmdask.mheta.checks import IntArray

Reason = Literal["converged", "budget", "exhausted"]


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """The best distribution that a search found, and how it got there.

    Parameters
    ----------
    distribution : ndarray of int64, shape [p]
        Rows per node; read-only.
    seconds : float
        What `predict` returned for it; ``inf`` if nothing feasible was found.
    evaluations : int
        How many distinct distributions were predicted, at most the budget.
    history : tuple of (int, float)
        Each distribution that was better than all before: how many had been predicted by then,
        itself included, and its seconds. The first entry is the first start, the last the result.
    reason : {"converged", "budget", "exhausted"}
        Why the search ended: it had nothing better to try, it had spent its budget, or it had
        predicted every distribution there is, so that the result is the optimum.
    prediction : object, optional
        The prediction of the distribution in detail, where `predict` has a method `prediction`;
        not compared.

    Notes
    -----
    Two results are equal if all fields but `prediction` are.

    Examples
    --------
    >>> import numpy as np
    >>> SearchResult(np.array([3, 1]), 2.5, 4, ((1, 4.0), (3, 2.5)), "converged")
    SearchResult(distribution=array([3, 1]), seconds=2.5, evaluations=4,
        history=((1, 4.0), (3, 2.5)), reason='converged', prediction=None)
    """

    distribution: IntArray
    seconds: float
    evaluations: int
    history: tuple[tuple[int, float], ...]
    reason: Reason
    prediction: Any = None

    def __post_init__(self) -> None:
        kept = self.distribution.copy()
        kept.flags.writeable = False
        object.__setattr__(self, "distribution", kept)

    def _state(self) -> tuple[Any, ...]:
        rows = tuple(self.distribution.tolist())
        return (rows, self.seconds, self.evaluations, self.history, self.reason)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SearchResult):
            return NotImplemented
        return self._state() == other._state()

    def __hash__(self) -> int:
        return hash(self._state())

    def _repr_html_(self) -> str:
        from fpmdask.mheta.html import search_html

        return search_html(self)
