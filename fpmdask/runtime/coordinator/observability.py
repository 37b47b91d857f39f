"""Where others see what the coordinator does: a page in Dask's dashboard, and its metrics.

On the scheduler. Both are there where Dask serves them, and cost nothing while nobody looks.
"""

from __future__ import annotations

import asyncio
import logging
from importlib import import_module
from typing import TYPE_CHECKING

from fpmdask.runtime.coordinator.metrics import MetricsCollector
from fpmdask.runtime.dask_private import add_dashboard_pages, add_metrics, serves_dashboard

if TYPE_CHECKING:
    from distributed import Scheduler

logger = logging.getLogger(__name__)

# Loaded where there is a dashboard only: it needs bokeh.
PAGES = "fpmdask.dashboard.pages"


async def observe(scheduler: Scheduler) -> None:
    """Add fpmdask's page and metrics to those of a scheduler; runs do not depend on either."""
    add_metrics(scheduler, MetricsCollector)
    if not serves_dashboard(scheduler):
        return
    try:
        pages = await asyncio.to_thread(import_module, PAGES)
        add_dashboard_pages(scheduler, pages.pages(), pages.MENU)
    except Exception:  # of another bokeh, perhaps
        logger.exception("the dashboard has no page of fpmdask")
