"""The parts of C become chunks of one dask array."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any
from uuid import uuid4

from fpmdask.apps.matmul.parts import Assignment
from fpmdask.apps.matmul.plan import MatmulSpec
from fpmdask.apps.matmul.tiling import chunks_of, cuts
from fpmdask.runtime.coordinator.chunks import unpublished
from fpmdask.runtime.coordinator.context import RunContext


class Publishing:
    """Publishes C; posts ``("publish",)`` when it is to be tried again.

    Attributes
    ----------
    pausing : bool
        Whether that is still to come.
    """

    def __init__(self, context: RunContext, spec: MatmulSpec) -> None:
        self.pausing = False
        self._context, self._spec, self._tuning = context, spec, context.tuning.matmul
        self._refused: Counter[str] = Counter()  # how often a worker could not

    async def publish(
        self, parts: Sequence[Assignment]
    ) -> tuple[dict[str, Any] | None, Mapping[str, str]]:
        """Return the run's value, or None and why which workers could not publish their parts."""
        name = f"fpmdask-matmul-{uuid4().hex}"
        rows, columns = cuts(part.tile for part in parts)
        keys = await asyncio.to_thread(chunks_of, self._spec, name, parts, rows, columns)
        if failed := await unpublished(self._context, keys):
            return None, failed
        sizes = [[high - low for low, high in pairwise(edges)] for edges in (rows, columns)]
        heights, widths = sizes[::-1] if self._spec.transposed else sizes
        return {"name": name, "rows": heights, "columns": widths}, {}

    def try_again(self, failed: Mapping[str, str]) -> dict[str, str]:
        """Try again soon; return worker → reason of those that have failed too often.

        Of those that are gone an event tells.
        """
        self._refused.update(failed.keys())
        self.pausing = True
        loop = asyncio.get_running_loop()
        loop.call_later(self._tuning.publish_seconds, self._context.steps.post, ("publish",))
        return {
            worker: f"it cannot publish its part: {why}"
            for worker, why in failed.items()
            if worker in self._context.scheduler.workers
            and self._refused[worker] >= self._tuning.publish_tries
        }
