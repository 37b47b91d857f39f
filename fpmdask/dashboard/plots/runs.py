"""The runs that go on and the last ten: how they ended, why, and who was left out."""

from __future__ import annotations

import math
from collections.abc import Mapping

from bokeh.layouts import column
from bokeh.models import CustomJS, DataTable, DateFormatter, Div, NumberFormatter, TableColumn

from fpmdask.dashboard.figures import Columns, Drawn, Plot, Sources
from fpmdask.dashboard.state import Snapshot

HEADS: Mapping[str, tuple[str, int]] = {
    "run": ("run", 170),
    "began": ("began", 80),
    "state": ("state", 70),
    "done": ("done", 50),
    "seconds": ("seconds", 60),
    "workers": ("workers", 60),
    "phase": ("phase", 200),
    "reason": ("reason", 120),
    "left_out": ("left out", 220),
}


def columns(snapshot: Snapshot) -> Mapping[str, Columns]:
    """Return ``runs``, a row each, the newest first.

    Examples
    --------
    >>> from fpmdask.dashboard.state import Run
    >>> run = Run("sort-1", "sort", 0.0, 2.0, "finished", "", 1.0, 3, "measured", "")
    >>> found = columns(Snapshot(runs=(run,)))["runs"]
    >>> found["run"], found["state"], found["reason"]
    (['sort-1'], ['finished'], ['measured'])
    """
    found: Columns = {name: [] for name in HEADS}
    for one in snapshot.runs:
        row = (
            one.run,
            1000 * one.began,
            one.state,
            one.fraction if one.state in ("running", "finished") else math.nan,
            round(one.seconds, 1),
            one.workers,
            one.phase,
            one.reason,
            one.left_out or "nobody",
        )
        for name, value in zip(HEADS, row, strict=True):
            found[name].append(value)
    return {"runs": found}


def title(snapshot: Snapshot) -> str:
    """Return the title."""
    if not snapshot.runs:
        return "Runs: none yet. Call fpmdask.Balancer(client).matmul(A, B)"
    going = sum(one.state == "running" for one in snapshot.runs)
    return f"Runs: {going} going on, the last {len(snapshot.runs) - going} that have ended"


def draw(sources: Sources) -> Drawn:
    """Return the table under its heading."""
    formatters = {
        "began": DateFormatter(format="%H:%M:%S"),
        "done": NumberFormatter(format="0 %", nan_format=""),
        "seconds": NumberFormatter(format="0.0"),
    }
    heads = []
    for name, (head, width) in HEADS.items():
        heads.append(TableColumn(field=name, title=head, width=width))
        if name in formatters:
            heads[-1].formatter = formatters[name]
    table = DataTable(
        source=sources["runs"],
        columns=heads,
        reorderable=False,
        index_position=None,
        sizing_mode="stretch_both",
        min_height=120,
        stylesheets=[".bk-data-table { z-index: 0; }"],
    )
    # of itself the table of bokeh 3.9 shows only rows that come and go, not what changes in them
    shown_again = CustomJS(args={"view": table.view}, code="view.change.emit()")
    sources["runs"].js_on_change("data", shown_again)
    heading = Div(text=title(Snapshot()), styles={"font-weight": "bold"})
    return column(heading, table, sizing_mode="stretch_both"), heading


PLOT = Plot("runs", columns, title, draw)
