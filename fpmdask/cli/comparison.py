"""What the demo does: one program in equal shares and balanced, on a lab, and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fpmdask.errors import FpmdaskError

if TYPE_CHECKING:
    from distributed import Client, Future

    from fpmdask.balancer import Balancer
    from fpmdask.cli.out_of_core import Iterated
    from fpmdask.lab import Lab
    from fpmdask.runtime.report import Report

# Five periods of the duty cycle per measurement, so that none dominates; at most twice that.
MIN_SECONDS, BUDGET_SECONDS = 0.2, 0.4
# DFPA's at most.
ROUNDS = 6
# Rows per worker of what warms everything up.
WARM_UP = 64
# After so long without an answer, whether all workers are there.
LOOK_SECONDS = 1.0

Tell = Callable[[Mapping[str, Any]], None]
Shares = Mapping[str, int]
T = TypeVar("T")


class WorkersLeft(FpmdaskError):
    """Workers have left that alone can compute what is waited for."""

    def __init__(self, names: Sequence[str], logs: str = "") -> None:
        super().__init__(
            f"{', '.join(names)} left in the middle of a run, which needs all workers{logs}; try "
            "again, `fpmdask doctor` examines the machine"
        )
        self.names = names


@dataclass(frozen=True)
class WorkerResult:
    """One worker in both runs: its speed at its balanced share, what fits, rows and seconds."""

    name: str
    gflops: float
    memory_rows: int
    even_rows: int
    even_seconds: float
    balanced_rows: int
    balanced_seconds: float


@dataclass(frozen=True)
class Comparison:
    """Both runs, in seconds from the first pass until the last worker had finished.

    ``measuring_seconds`` is what DFPA took before the balanced one. ``deviation`` is the largest
    one of the sums of the columns from NumPy's, relative to the largest sum.
    """

    rows: int
    passes: int
    seed: int
    workers: tuple[WorkerResult, ...]
    even_seconds: float
    balanced_seconds: float
    measuring_seconds: float
    rounds: int
    imbalance: float | None
    reason: str
    deviation: float
    backend: str

    @property
    def ratio(self) -> float:
        """How many times as fast the balanced run was."""
        return self.even_seconds / self.balanced_seconds

    @property
    def ratio_with_measuring(self) -> float:
        """The same, DFPA's time included."""
        return self.even_seconds / (self.balanced_seconds + self.measuring_seconds)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        ratios = {"ratio": self.ratio, "ratio_with_measuring": self.ratio_with_measuring}
        return {**asdict(self), **ratios}


def operations_per_row() -> float:
    """Return the floating-point operations of one pass per row."""
    from fpmdask.cli.out_of_core import COLUMNS

    return 2.0 * COLUMNS**2


def most_rows(nbytes: int) -> int:
    """Return the most rows that a comparison has room for: twice what they take themselves.

    Examples
    --------
    >>> most_rows(2**30)
    262144
    """
    from fpmdask.cli.out_of_core import COLUMNS

    return nbytes // (2 * 8 * COLUMNS)


def compare(
    lab: Lab,
    rows: int,
    passes: int,
    *,
    seed: int,
    epsilon: float,
    tell: Tell,
    hold: Callable[[], None] | None = None,
) -> tuple[Comparison, Report]:
    """Multiply rows by a matrix again and again on a lab, in equal shares and balanced.

    Parameters
    ----------
    lab
        The lab, not yet up.
    rows, passes
        How many rows, and how often all are replaced by their product.
    seed
        Of the rows and the matrix.
    epsilon
        Imbalance that DFPA is to reach.
    tell
        Called with what happens: the `Balancer`'s events, ``{"event": "stage", "what": …}`` when
        something begins, ``{"event": "share", "worker": …}`` when a worker has finished. Part of it
        comes from the client's event-loop thread.
    hold
        Called when all is done, before the workers are taken down; the address of the dashboard's
        page is told before the runs then, and again.

    Returns
    -------
    tuple
        Both runs, and the report of what was measured.

    Raises
    ------
    FpmdaskError
        If the lab cannot be made, a run fails, or a result is wrong.
    """
    from distributed import Client

    from fpmdask.balancer import Balancer
    from fpmdask.lab.cluster import tail

    names = [worker.name for worker in lab.workers]
    tell({"event": "stage", "what": f"starting {len(names)} unequal workers", "workers": names})
    with lab, Client(lab.scheduler_address) as client:
        with Balancer(client, progress=tell) as balancer:
            if hold is not None:
                page = str(client.dashboard_link).removesuffix("/status") + "/fpmdask"
                tell({"event": "stage", "what": f"the dashboard is at {page}"})
            try:
                found = _both(client, balancer, names, rows, passes, seed, epsilon, tell)
            except WorkersLeft as error:
                logs = ((name, tail(lab.log(name))) for name in error.names)
                said = ", ".join(f"{name}'s log ends with: {text}" for name, text in logs)
                raise WorkersLeft(error.names, f" ({said})") from None
            if hold is not None:
                tell({"event": "stage", "what": f"the workers stay until Ctrl-C, see {page}"})
                hold()
        backend = lab.backend
        tell({"event": "stage", "what": "taking the workers down"})
    return _comparison(rows, passes, seed, names, found, backend), found.report


@dataclass(frozen=True)
class _Found:
    """Both runs by worker name, what was measured between them, and the deviation."""

    even: Mapping[str, Iterated]
    report: Report
    balanced: Mapping[str, Iterated]
    deviation: float


def _both(
    client: Client,
    balancer: Balancer,
    names: Sequence[str],
    rows: int,
    passes: int,
    seed: int,
    epsilon: float,
    tell: Tell,
) -> _Found:
    from fpmdask.cli.out_of_core import RowsTimesMatrix
    from fpmdask.partition import even
    from fpmdask.timing import TimingPolicy

    _iterate(client, dict.fromkeys(names, WARM_UP), 1, seed)
    tell({"event": "stage", "what": "even split: every worker gets as many rows"})
    evenly = dict(zip(names, even(rows, len(names)).tolist(), strict=True))
    before = _iterate(client, evenly, passes, seed, tell)
    tell({"event": "stage", "what": "measuring: DFPA finds who should get how many"})
    shares = balancer.partition(
        RowsTimesMatrix(seed),
        rows,
        epsilon=epsilon,
        max_rounds=ROUNDS,
        timing=TimingPolicy(
            min_seconds=MIN_SECONDS, budget_seconds=BUDGET_SECONDS, warmup=0, min_repetitions=1
        ),
    )
    tell({"event": "stage", "what": "balanced: every worker gets the rows found for it"})
    after = _iterate(client, dict(shares), passes, seed, tell)
    tell({"event": "stage", "what": "checking both results against NumPy"})
    deviation = _deviation([before, after], rows, passes, seed)
    return _Found(before, shares.report, after, deviation)


def _iterate(
    client: Client, shares: Shares, passes: int, seed: int, tell: Tell | None = None
) -> dict[str, Iterated]:
    """Have all workers begin at the same time with rows that they have made before."""
    from fpmdask.cli import out_of_core

    first, loaded = 0, {}
    for name, rows in shares.items():
        held = client.submit(out_of_core.load, first, rows, seed, workers=[name], pure=False)
        loaded[held] = name
        first += rows
    for _ in _as_completed(client, loaded):
        pass
    running = {
        client.submit(out_of_core.iterate, held, passes, workers=[name], pure=False): name
        for held, name in loaded.items()
    }
    found = {}
    for future in _as_completed(client, running):
        found[running[future]] = future.result()
        if tell is not None:
            tell({"event": "share", "worker": running[future]})
    return found


def _as_completed(client: Client, running: Mapping[Future[T], str]) -> Iterator[Future[T]]:
    """Yield futures as they end; each is of the worker that alone can compute it.

    Raises
    ------
    WorkersLeft
        If such a worker has left: its future would never end.
    """
    from distributed import wait

    from fpmdask.lab.cluster import registered

    waiting = {*running}
    while waiting:
        try:
            ended = wait(waiting, timeout=LOOK_SECONDS, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            here = {worker["name"] for worker in registered(client).values()}
            if gone := sorted({running[future] for future in waiting} - here):
                raise WorkersLeft(gone) from None
            continue
        waiting -= ended
        yield from ended


def _deviation(
    results: Sequence[Mapping[str, Iterated]], rows: int, passes: int, seed: int
) -> float:
    """Return the largest deviation of the sums of the columns from NumPy's, made here."""
    import numpy as np

    from fpmdask.cli.out_of_core import COLUMNS, expected_sums

    expected = expected_sums(rows, passes, seed)
    sums = [np.sum([one.sums for one in result.values()], axis=0) for result in results]
    deviation = float(max(np.abs(one - expected).max() for one in sums) / np.abs(expected).max())
    # Error bounds of dot products of length COLUMNS, one after another, and of a sum of rows.
    allowed = (passes * COLUMNS + rows) * float(np.finfo(np.float64).eps)
    if not deviation <= allowed:
        raise FpmdaskError(
            f"the sums of the columns deviate from NumPy's by {deviation:.2g}, more than the "
            f"{allowed:.2g} of rounding; please report this, with what `fpmdask doctor` prints"
        )
    return deviation


def _comparison(
    rows: int, passes: int, seed: int, names: Sequence[str], found: _Found, backend: str
) -> Comparison:
    from fpmdask.partition import even

    report = found.report
    balanced = dict(zip(report.workers, report.distribution.tolist(), strict=True))
    evenly = dict(zip(names, even(rows, len(names)).tolist(), strict=True))
    workers = []
    for name in names:
        before, after, model = found.even[name], found.balanced.get(name), report.models.get(name)
        units = balanced.get(name, 0)
        workers.append(
            WorkerResult(
                name=name,
                gflops=0.0
                if model is None
                else float(model.speed(float(max(units, 1)))) * operations_per_row() / 1e9,
                memory_rows=before.most,
                even_rows=evenly[name],
                even_seconds=before.seconds,
                balanced_rows=units,
                balanced_seconds=0.0 if after is None else after.seconds,
            )
        )
    return Comparison(
        rows=rows,
        passes=passes,
        seed=seed,
        workers=tuple(workers),
        even_seconds=max(one.even_seconds for one in workers),
        balanced_seconds=max(one.balanced_seconds for one in workers),
        measuring_seconds=report.phases["measure"],
        rounds=len(report.rounds),
        imbalance=report.imbalance,
        reason=report.reason,
        deviation=found.deviation,
        backend=backend,
    )
