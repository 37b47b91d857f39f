"""What a call of an update costs beside its rows: from calls of two sizes. Pure."""

from __future__ import annotations

# Seconds of a row where a call takes as long whatever its rows: not 0, a worker has some speed.
LEAST_SECONDS = 1e-12


class CallCosts:
    """Sums over calls, for a least-squares fit of seconds = a · calls + b · rows.

    Calls of one size cannot tell a from b. A worker with neighbours has two sizes: the rows that
    need no halo, and those at both ends, once halos are there.

    Examples
    --------
    >>> costs = CallCosts()
    >>> costs.add(1, 100, 1.2)
    >>> costs.seconds is None
    True
    >>> costs.add(2, 2, 0.42)
    >>> [round(one, 9) for one in costs.seconds]
    [0.2, 0.01]
    """

    def __init__(self) -> None:
        self._calls2 = self._both = self._rows2 = self._calls = self._rows = 0.0

    def add(self, calls: int, rows: int, seconds: float) -> None:
        """Add calls that were timed together."""
        self._calls2 += calls * calls
        self._both += calls * rows
        self._rows2 += rows * rows
        self._calls += calls * seconds
        self._rows += rows * seconds

    @property
    def seconds(self) -> tuple[float, float] | None:
        """Of a call without rows, and of a row, both >= 0; None where all calls had one size."""
        determinant = self._calls2 * self._rows2 - self._both**2
        if determinant <= 1e-9 * self._calls2 * self._rows2:
            return None
        call = (self._calls * self._rows2 - self._rows * self._both) / determinant
        call = max(0.0, call)
        row = (self._rows - call * self._both) / self._rows2
        if row < 0:
            row, call = 0.0, self._calls / self._calls2
        return call, row
