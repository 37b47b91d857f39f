"""What each worker is to do, has done, and when it is expected to end; live."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fpmdask.dashboard.figures import Columns, Drawn, Plot, Sources, lane_figure, lanes
from fpmdask.dashboard.state import Share, Snapshot
from fpmdask.runtime.progress import duration

# With more workers there is no room for words beside the bars.
MOST_WORDS = 40


def columns(snapshot: Snapshot) -> Mapping[str, Columns]:
    """Return ``shares``, a row per worker.

    Examples
    --------
    >>> share = Share("a", planned=100, done=25, end=4.0)
    >>> found = columns(Snapshot(workers=("a",), now=1.0, shares=(share,)))["shares"]
    >>> found["planned"], found["done"], found["words"]
    ([100], [25], [' ends in 3.0 s'])
    """
    found: Columns = {name: [] for name in ("worker", "y", "planned", "done", "part", "words")}
    place, brief = lanes(snapshot), len(snapshot.shares) > MOST_WORDS
    for share in snapshot.shares:
        if share.worker in place:
            found["worker"].append(share.worker)
            found["y"].append(place[share.worker])
            found["planned"].append(share.planned)
            found["done"].append(share.done)
            found["part"].append(round(share.done / share.planned, 3) if share.planned else 1.0)
            found["words"].append("" if brief else _end(share, snapshot.now))
    return {"shares": found}


def _end(share: Share, now: float) -> str:
    if share.end is None:
        return ""
    if share.ended:
        return f" took until {duration(share.end)}"
    return f" ends in {duration(max(0.0, share.end - now))}"


def title(snapshot: Snapshot) -> str:
    """Return the title."""
    run = snapshot.run
    if run is None or not snapshot.shares:
        return "Shares: no run yet. Call balancer.matmul, sort, map_blocks, stencil, …"
    ends = [share.end for share in snapshot.shares if share.end is not None]
    ended = run.state != "running"
    if not ends:
        return f"Shares, {run.run}: {run.phase or run.state}"
    last = max(ends)
    words = f"took until {duration(last)}" if ended else f"all done about {duration(last)}"
    return f"Shares, {run.run}: {words} after its start"


def draw(sources: Sources) -> Drawn:
    """Return the figure and its title."""
    tips = [
        ("worker", "@worker"),
        ("done", "@done{0,0.[0]} of @planned{0,0.[0]} units, @part{0%}"),
        ("end", "@words"),
    ]
    drawn = lane_figure(title(Snapshot()), "units", tips)
    drawn.x_range.start = 0
    source = sources["shares"]
    bar: dict[str, Any] = {"y": "y", "height": 0.8, "left": 0, "source": source}
    drawn.hbar(right="planned", fill_color="deepskyblue", fill_alpha=0.25, line_color=None, **bar)
    drawn.hbar(right="done", fill_color="deepskyblue", line_color=None, **bar)
    drawn.text(
        "planned", "y", "words", source=source, text_font_size="11px", text_baseline="middle"
    )
    return drawn, drawn.title


PLOT = Plot("shares", columns, title, draw, lanes="y")
