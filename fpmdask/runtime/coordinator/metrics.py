"""What runs did, for Prometheus: the coordinator's part of the scheduler's ``/metrics``.

On the scheduler, when it is asked. Without prometheus_client nobody makes a `MetricsCollector`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dask

from fpmdask.runtime.version import PLUGIN

if TYPE_CHECKING:
    from distributed import Scheduler

NAMESPACE = "distributed.dashboard.prometheus.namespace"


class MetricsCollector:
    """A collector of ``prometheus_client``.

    Attributes
    ----------
    server : Scheduler
        Whose metrics are asked for; Dask sets it with each request.
    """

    def __init__(self, server: Scheduler) -> None:
        self.server = server
        self._prefix = f"{dask.config.get(NAMESPACE, 'dask')}_fpmdask_"

    def collect(self) -> Iterator[Any]:
        """Yield the metrics; none where the scheduler has no coordinator."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        coordinator: Any = self.server.plugins.get(PLUGIN)
        if coordinator is None:
            return
        history, totals = coordinator.history, coordinator.history.totals

        def family(kind: Any, name: str, what: str, labels: list[str], values: Any) -> Any:
            found = kind(self._prefix + name, what, labels=labels)
            for key, value in values.items():
                found.add_metric([key] if isinstance(key, str) else list(key), value)
            return found

        going: dict[str, int] = {}
        for record in history.going.values():
            going[record.app] = going.get(record.app, 0) + 1
        counter, gauge, app = CounterMetricFamily, GaugeMetricFamily, "app"
        yield family(counter, "runs", "Runs that have ended, and how", [app, "ending"], totals.runs)
        yield family(gauge, "runs_going", "Runs that go on", [app], going)
        yield family(counter, "rounds", "Rounds of DFPA", [app], totals.rounds)
        yield family(
            counter,
            "worker_seconds",
            "Seconds of workers in steps, by activity: measure, compute, send, receive, wait, I/O",
            [app, "activity"],
            totals.seconds,
        )
        yield family(
            counter,
            "received_bytes",
            "Bytes that workers received from others",
            [app],
            totals.nbytes,
        )
        yield family(
            gauge, "imbalance", "(t_max - t_min) / t_min of the last run", [app], totals.imbalance
        )
        yield family(
            counter,
            "workers_left_out",
            "Workers that did not take part to the end of a run",
            [app],
            totals.left_out,
        )
