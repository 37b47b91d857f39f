"""The pages: ``/fpmdask`` with all plots, and ``/individual-fpmdask-…`` for each of them.

On the scheduler's event loop; a function of a page is called when a browser opens it.
`fpmdask.runtime.coordinator.observability` adds them to Dask's dashboard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bokeh.layouts import grid
from distributed import Scheduler
from distributed.dashboard.components.scheduler import BOKEH_THEME, env
from distributed.utils import log_errors

from fpmdask.dashboard.figures import Page, Plot, update_regularly
from fpmdask.dashboard.plots import PLOTS
from fpmdask.dashboard.snapshot import Snapshots

PageFunction = Callable[[Scheduler, dict[str, Any], Any], None]

# The page with an entry in Dask's menu.
PATH = "/fpmdask"
MENU = (PATH,)
# Columns of that page.
WIDE = 2


def pages() -> dict[str, PageFunction]:
    """Return path → the function that fills a document, of one scheduler."""
    taken: list[Snapshots] = []

    def snapshots(scheduler: Scheduler) -> Snapshots:
        if not taken:
            taken.append(Snapshots(scheduler))
        return taken[0]

    found: dict[str, PageFunction] = {PATH: partial(_all_plots, snapshots)}
    for plot in PLOTS:
        found[f"/individual-fpmdask-{plot.name}"] = partial(_one_plot, snapshots, plot)
    return found


def _page(
    snapshots: Callable[[Scheduler], Snapshots],
    plots: Sequence[Plot],
    scheduler: Scheduler,
    document: Any,
) -> Page:
    page = Page(snapshots(scheduler), plots)
    page.update()
    update_regularly(document, page)
    document.theme = BOKEH_THEME
    return page


@log_errors
def _all_plots(
    snapshots: Callable[[Scheduler], Snapshots],
    scheduler: Scheduler,
    variables: dict[str, Any],
    document: Any,
) -> None:
    page = _page(snapshots, PLOTS, scheduler, document)
    roots = [drawing.root for drawing in page.drawings]
    rows = [roots[first : first + WIDE] for first in range(0, len(roots), WIDE)]
    document.add_root(grid(rows, sizing_mode="stretch_both"))
    document.title = "Dask: fpmdask"
    document.template = env.get_template("simple.html")
    document.template_variables.update(variables)


@log_errors
def _one_plot(
    snapshots: Callable[[Scheduler], Snapshots],
    plot: Plot,
    scheduler: Scheduler,
    variables: dict[str, Any],
    document: Any,
) -> None:
    page = _page(snapshots, [plot], scheduler, document)
    document.add_root(page.drawings[0].root)
    document.title = f"Dask: fpmdask {plot.name.replace('-', ' ')}"
