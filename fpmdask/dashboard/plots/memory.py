"""Each worker's memory against its limit, and against what plans may fill."""

from __future__ import annotations

from collections.abc import Mapping

from bokeh.models import BasicTicker, NumeralTickFormatter

from fpmdask.dashboard.figures import Columns, Drawn, Plot, Sources, lane_figure, lanes
from fpmdask.dashboard.state import Snapshot

# As Dask shows them: managed, unmanaged, unmanaged for a short time, spilled.
PARTS: Mapping[str, float] = {"data": 1.0, "beside": 0.7, "recent": 0.4, "spilled": 1.0}
WHAT: Mapping[str, str] = {
    "data": "Dask's data",
    "beside": "unmanaged",
    "recent": "unmanaged (recent)",
    "spilled": "spilled to disk",
}
BASE, MANTISSAS = 1024, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


def columns(snapshot: Snapshot) -> Mapping[str, Columns]:
    """Return ``parts``: bars side by side; and ``bounds``: a mark per worker that has a limit.

    Examples
    --------
    >>> from fpmdask.dashboard.state import Memory
    >>> one = Memory("a", data=40, beside=30, recent=0, spilled=5, plan=60, limit=100)
    >>> found = columns(Snapshot(workers=("a",), memory=(one,)))
    >>> found["parts"]["left"], found["parts"]["right"], found["parts"]["color"]
    ([0.0, 40.0, 70.0], [40.0, 70.0, 75.0], ['orange', 'orange', 'grey'])
    >>> found["bounds"]["plan"], found["bounds"]["limit"]
    ([60], [100])
    """
    parts: Columns = {
        name: [] for name in ("worker", "y", "left", "right", "color", "alpha", "what", "nbytes")
    }
    bounds: Columns = {"worker": [], "y": [], "plan": [], "limit": []}
    place = lanes(snapshot)
    for one in snapshot.memory:
        left, y = 0.0, place[one.worker]
        used = one.data + one.beside + one.recent
        colour = "orange" if one.plan and used > one.plan else "blue"
        for name, alpha in PARTS.items():
            if nbytes := getattr(one, name):
                shown = "grey" if name == "spilled" else colour
                row = (one.worker, y, left, left + nbytes, shown, alpha, WHAT[name], nbytes)
                for key, value in zip(parts, row, strict=True):
                    parts[key].append(value)
                left += nbytes
        if one.limit:
            for key, value in zip(bounds, (one.worker, y, one.plan, one.limit), strict=True):
                bounds[key].append(value)
    return {"parts": parts, "bounds": bounds}


def title(snapshot: Snapshot) -> str:
    """Return the title."""
    if not snapshot.memory:
        return "Memory per worker: no worker is connected. Start some with `dask worker`"
    return "Memory per worker: limit (black), what plans may fill (green)"


def draw(sources: Sources) -> Drawn:
    """Return the figure and its title."""
    tips = [("worker", "@worker"), ("@what", "@nbytes{0.00 b}")]
    drawn = lane_figure(title(Snapshot()), "bytes", tips)
    drawn.x_range.start = 0
    drawn.hbar(
        y="y",
        left="left",
        right="right",
        height=0.8,
        source=sources["parts"],
        fill_color="color",
        fill_alpha="alpha",
        line_color=None,
    )
    for name, colour in (("limit", "black"), ("plan", "green")):
        drawn.scatter(
            name,
            "y",
            source=sources["bounds"],
            marker="dash",
            angle=1.5708,
            size=14,
            line_color=colour,
            line_width=2,
        )
    drawn.xaxis.ticker = BasicTicker(base=BASE, mantissas=MANTISSAS)
    drawn.xaxis.formatter = NumeralTickFormatter(format="0.0 b")
    return drawn, drawn.title


PLOT = Plot("memory", columns, title, draw, lanes="y")
