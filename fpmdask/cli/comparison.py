"""What the demo does: one product under an even split and balanced, on a lab, and checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fpmdask.errors import FpmdaskError

if TYPE_CHECKING:
    from distributed import Client

    from fpmdask.balancer import Balancer
    from fpmdask.lab import Lab
    from fpmdask.runtime.report import Report

# Deep enough for BLAS to run at its speed (0.95 of the deepest), and for a kernel of tens of
# milliseconds.
DEPTH = 128
# Five periods of the duty cycle per measurement, so that none dominates; at most twice that.
MIN_SECONDS, BUDGET_SECONDS = 0.2, 0.4
# Scouting and rounds of its shares, so that there are curves to see.
ROUNDS = 3
# Rows of the product that warms everything up.
WARM_UP = 256

# Matrices at the same time: A, B and C on the workers, and either a copy of B on each of them or,
# in this process, A, B, NumPy's product, ours and their difference.
ON_WORKERS, WHEN_CHECKED = 3, 5

Tell = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class WorkerResult:
    """One worker in both products: its speed at its balanced share, rows and seconds."""

    name: str
    gflops: float
    even_rows: int
    even_seconds: float
    balanced_rows: int
    balanced_seconds: float


@dataclass(frozen=True)
class Comparison:
    """Both products, in seconds from the first row to a complete C.

    ``measuring_seconds`` is what DFPA took before the balanced product. ``deviation`` is the
    largest one from NumPy's product, relative to its largest entry.
    """

    n: int
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
        """How many times as fast the balanced product was."""
        return self.even_seconds / self.balanced_seconds

    @property
    def ratio_with_measuring(self) -> float:
        """The same, DFPA's time included."""
        return self.even_seconds / (self.balanced_seconds + self.measuring_seconds)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        ratios = {"ratio": self.ratio, "ratio_with_measuring": self.ratio_with_measuring}
        return {**asdict(self), **ratios}


@dataclass(frozen=True)
class Products:
    """The reports of both products, and C's deviation."""

    even: Report
    balanced: Report
    deviation: float


def operations_per_row(n: int) -> float:
    """Return the floating-point operations of the timed kernel per row of C."""
    return 2.0 * n * min(DEPTH, n)


def largest_n(workers: int, nbytes: int) -> int:
    """Return the most rows and columns that a comparison has room for.

    Examples
    --------
    >>> largest_n(4, nbytes=64 * 1000**2)
    1000
    """
    matrices = ON_WORKERS + max(workers, WHEN_CHECKED)
    return math.isqrt(nbytes // (8 * matrices))


def compare(
    lab: Lab,
    n: int,
    *,
    seed: int,
    epsilon: float | None,
    tell: Tell,
    hold: Callable[[], None] | None = None,
) -> tuple[Comparison, Products]:
    """Multiply two random n × n matrices on a lab, evenly split and balanced.

    Parameters
    ----------
    lab
        The lab, not yet up.
    n
        Rows and columns.
    seed
        Of the matrices.
    epsilon
        Imbalance that DFPA is to reach, or None for the configured one.
    tell
        Called with what happens: the `Balancer`'s events, and ``{"event": "stage", "what": …}``
        when something begins. Part of it comes from the client's event-loop thread.
    hold
        Called when all is done, before the workers are taken down; the address of the dashboard's
        page is told before the products then, and again.

    Raises
    ------
    FpmdaskError
        If the lab cannot be made, a run fails, or C is wrong.
    """
    from distributed import Client

    from fpmdask.balancer import Balancer

    names = [worker.name for worker in lab.workers]
    tell({"event": "stage", "what": f"starting {len(names)} unequal workers", "workers": names})
    with lab, Client(lab.scheduler_address) as client:
        with Balancer(client, progress=tell) as balancer:
            if hold is not None:
                page = str(client.dashboard_link).removesuffix("/status") + "/fpmdask"
                tell({"event": "stage", "what": f"the dashboard is at {page}"})
            products = _multiply(client, balancer, lab, n, seed, epsilon, tell)
            if hold is not None:
                tell({"event": "stage", "what": f"the workers stay until Ctrl-C, see {page}"})
                hold()
        backend = lab.backend
        tell({"event": "stage", "what": "taking the workers down"})
    return _comparison(n, seed, names, products, backend), products


def _multiply(
    client: Client,
    balancer: Balancer,
    lab: Lab,
    n: int,
    seed: int,
    epsilon: float | None,
    tell: Tell,
) -> Products:
    import dask.array as da
    from distributed import wait

    from fpmdask.partition import even
    from fpmdask.timing import TimingPolicy

    names = [worker.name for worker in lab.workers]
    tell({"event": "stage", "what": "making two random matrices on the workers"})
    rng = da.random.default_rng(seed)
    block = -(-n // (2 * len(names)))
    lazy = [rng.random((n, n), chunks=(block, n)) for _ in "AB"]
    a, b = client.persist(lazy)
    wait([a, b])
    evenly = dict(zip(names, even(n, len(names)).tolist(), strict=True))
    small = even(WARM_UP, len(names)).tolist()
    corner = (slice(0, WARM_UP),) * 2
    if n > WARM_UP:
        balancer.matmul(a[corner], b[corner], distribution=dict(zip(names, small, strict=True)))
    tell({"event": "stage", "what": "even split: every worker gets as many rows"})
    balancer.matmul(a, b, distribution=evenly)
    split = balancer.report
    tell(
        {
            "event": "stage",
            "what": "balanced: DFPA measures while it shares out",
            "product": "balanced",
        }
    )
    policy = TimingPolicy(min_seconds=MIN_SECONDS, budget_seconds=BUDGET_SECONDS)
    c = balancer.matmul(
        a,
        b,
        epsilon=epsilon,
        max_rounds=ROUNDS if epsilon is None else None,
        timing=policy,
        depth=min(DEPTH, n),
    )
    balanced = balancer.report
    assert split is not None
    assert balanced is not None
    tell({"event": "stage", "what": "checking C against NumPy"})
    return Products(split, balanced, _deviation(lazy, c))


def _deviation(inputs: list[Any], c: Any) -> float:
    """Return C's largest deviation from NumPy's product, made here from the same seed."""
    import numpy as np

    a, b = (x.compute(scheduler="threads") for x in inputs)
    expected = a @ b
    deviation = float(np.abs(c.compute() - expected).max() / np.abs(expected).max())
    # Error bound of a dot product of length n: n · eps · |a|·|b|, and all entries are >= 0 here.
    allowed = a.shape[1] * float(np.finfo(np.float64).eps)
    if not deviation <= allowed:
        raise FpmdaskError(
            f"C deviates from NumPy's product by {deviation:.2g}, more than the {allowed:.2g} of "
            "rounding; please report this, with what `fpmdask doctor` prints"
        )
    return deviation


def _comparison(
    n: int, seed: int, names: list[str], products: Products, backend: str
) -> Comparison:
    even, balanced = _by_name(products.even), _by_name(products.balanced)
    models = products.balanced.models
    nothing = (0, 0.0)
    workers = []
    for name in names:
        rows, seconds = balanced.get(name, nothing)
        speed = float(models[name].speed(float(max(rows, 1)))) if name in models else 0.0
        gflops = speed * operations_per_row(n) / 1e9
        workers.append(WorkerResult(name, gflops, *even.get(name, nothing), rows, seconds))
    return Comparison(
        n=n,
        seed=seed,
        workers=tuple(workers),
        even_seconds=products.even.phases["multiply"],
        balanced_seconds=products.balanced.phases["multiply"],
        measuring_seconds=products.balanced.phases["measure"],
        rounds=len(products.balanced.rounds),
        imbalance=products.balanced.imbalance,
        reason=products.balanced.reason,
        deviation=products.deviation,
        backend=backend,
    )


def _by_name(report: Report) -> dict[str, tuple[int, float]]:
    """Return worker name → rows, seconds of its share."""
    return {name: (units, spent or 0.0) for name, units, _, spent, _ in report.table()}
