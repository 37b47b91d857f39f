"""Bytes that each worker has received from each other one, since it started."""

from __future__ import annotations

from collections.abc import Mapping

from bokeh.models import BasicTicker, ColorBar, NumeralTickFormatter
from bokeh.transform import linear_cmap

from fpmdask.dashboard.figures import Columns, Drawn, Plot, Sources, lane_figure, lanes
from fpmdask.dashboard.state import Snapshot
from fpmdask.runtime.explain import nbytes_of


def columns(snapshot: Snapshot) -> Mapping[str, Columns]:
    """Return ``links``: sender, receiver and bytes of each pair.

    Examples
    --------
    >>> from fpmdask.dashboard.state import LinkBytes
    >>> links = (LinkBytes(receiver="a", sender="b", nbytes=8),)
    >>> columns(Snapshot(workers=("a", "b"), links=links))["links"]
    {'x': [1], 'y': [0], 'sender': ['b'], 'receiver': ['a'], 'nbytes': [8]}
    """
    found: Columns = {"x": [], "y": [], "sender": [], "receiver": [], "nbytes": []}
    place = lanes(snapshot)
    for link in snapshot.links:
        found["x"].append(place[link.sender])
        found["y"].append(place[link.receiver])
        found["sender"].append(link.sender)
        found["receiver"].append(link.receiver)
        found["nbytes"].append(link.nbytes)
    return {"links": found}


def title(snapshot: Snapshot) -> str:
    """Return the title."""
    if not snapshot.links:
        return "Bytes per link: nothing has moved between workers yet. Run balancer.matmul(A, B)"
    return f"Bytes per link, {nbytes_of(sum(link.nbytes for link in snapshot.links))} together"


def draw(sources: Sources) -> Drawn:
    """Return the figure and its title."""
    tips = [("from", "@sender"), ("to", "@receiver"), ("bytes", "@nbytes{0.00 b}")]
    drawn = lane_figure(title(Snapshot()), "from worker", tips)
    drawn.yaxis.axis_label = "to worker"
    drawn.xgrid.visible = False
    colour = linear_cmap("nbytes", "Viridis256", low=0, high=None)
    drawn.rect("x", "y", 0.95, 0.95, source=sources["links"], color=colour)
    drawn.xaxis.major_label_orientation = 1.0
    bar = ColorBar(
        color_mapper=colour.transform,
        formatter=NumeralTickFormatter(format="0.0 b"),
        ticker=BasicTicker(desired_num_ticks=4),
        width=10,
    )
    drawn.add_layout(bar, "right")
    return drawn, drawn.title


PLOT = Plot("bytes-per-link", columns, title, draw, lanes="xy")
