"""What each worker did when: measured below, predicted above it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bokeh.models import Legend, LegendItem

from fpmdask.dashboard.figures import (
    ACTIVITY_COLOURS,
    Columns,
    Drawn,
    Plot,
    Sources,
    lane_figure,
    lanes,
)
from fpmdask.dashboard.state import Snapshot

# Of a lane: what is measured, what goes on, and what was predicted.
MEASURED, PREDICTED = (-0.15, 0.4), (-0.42, -0.2)


def columns(snapshot: Snapshot) -> Mapping[str, Columns]:
    """Return ``done``, ``open`` and ``predicted``: rectangles, in seconds and lanes.

    Examples
    --------
    >>> from fpmdask.dashboard.state import Piece
    >>> piece = Piece("a", "receive", began=1.0, seconds=0.5)
    >>> found = columns(Snapshot(workers=("a",), pieces=(piece,)))["done"]
    >>> found["left"], found["right"], found["color"]
    ([1.0], [1.5], ['red'])
    """
    done = [piece for piece in snapshot.pieces if not piece.open]
    going = [piece for piece in snapshot.pieces if piece.open]
    return {
        "done": _rectangles(snapshot, done, MEASURED),
        "open": _rectangles(snapshot, going, MEASURED),
        "predicted": _rectangles(snapshot, snapshot.predicted, PREDICTED),
    }


def _rectangles(snapshot: Snapshot, pieces: Any, span: tuple[float, float]) -> Columns:
    names = ("left", "right", "top", "bottom", "color", "worker", "what", "seconds", "step")
    found: Columns = {name: [] for name in names}
    place, (low, high) = lanes(snapshot), span
    for piece in pieces:
        if (lane := place.get(piece.worker)) is not None:
            row = (
                round(piece.began, 4),
                round(piece.began + piece.seconds, 4),
                lane + low,
                lane + high,
                ACTIVITY_COLOURS[piece.activity],
                piece.worker,
                piece.activity,
                round(piece.seconds, 4),
                piece.step,
            )
            for name, value in zip(names, row, strict=True):
                found[name].append(value)
    return found


def title(snapshot: Snapshot) -> str:
    """Return the title."""
    run = snapshot.run
    if run is None or not snapshot.pieces:
        return "Timeline: no run yet. Call balancer.matmul, sort, map_blocks, stencil, …"
    predicted = "; narrow bars: as predicted" if snapshot.predicted else ""
    return f"Timeline, {run.run}{predicted}"


def draw(sources: Sources) -> Drawn:
    """Return the figure and its title."""
    tips = [("worker", "@worker"), ("@what", "@seconds{0.000} s"), ("step", "@step")]
    drawn = lane_figure(title(Snapshot()), "seconds since the run began", tips)
    drawn.x_range.start = 0
    box = {"left": "left", "right": "right", "top": "top", "bottom": "bottom"}
    look: dict[str, Any] = {"fill_color": "color", "line_color": None}
    drawn.quad(**box, source=sources["done"], **look)
    drawn.quad(**box, source=sources["open"], fill_alpha=0.5, **look)
    drawn.quad(**box, source=sources["predicted"], fill_alpha=0.8, **look)
    # a glyph per activity, at no place, for the legend: it shows the colour of a first row
    nowhere = {side: [math.nan] for side in box}
    items = [
        LegendItem(
            label=name, renderers=[drawn.quad(**nowhere, fill_color=colour, line_color=None)]
        )
        for name, colour in ACTIVITY_COLOURS.items()
    ]
    drawn.add_layout(Legend(items=items, orientation="horizontal", border_line_color=None), "below")
    return drawn, drawn.title


PLOT = Plot("timeline", columns, title, draw, lanes="y")
