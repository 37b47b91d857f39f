"""How all plots are drawn: their sources, what is sent to the browser, and the look of Dask's.

On the scheduler's event loop, for one bokeh document. A `Plot` says what is to be drawn; `Drawing`
is one of a document, and sends only what has changed.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.core.properties import without_property_validation
from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, NoOverlap
from bokeh.plotting import figure

from fpmdask.dashboard.snapshot import Snapshots
from fpmdask.dashboard.state import Snapshot

Columns = dict[str, list[Any]]
Sources = Mapping[str, ColumnDataSource]
# A bokeh model, and that of its title, whose `text` is set.
Drawn = tuple[Any, Any]

# Milliseconds between two updates of a page, at least; and the part of the scheduler's time that
# they take at most, as far as such a pause is not too long to look at, in seconds. What bokeh does
# to send them takes about as much again.
INTERVAL, PART_OF_TIME, MOST_SECONDS = 750, 0.008, 4.0
# Names of workers along an axis; where there are more, every second or third one.
MOST_NAMES = 32
# Okabe and Ito's colours, without yellow: those of workers.
WORKER_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#5E4FA2",
    "#7F7F7F",
)
# As in Dask's own plots: what comes in is red, what goes out blue, disks are orange.
ACTIVITY_COLOURS: Mapping[str, str] = {
    "measure": "#9467BD",
    "compute": "deepskyblue",
    "send": "blue",
    "receive": "red",
    "wait": "lightgray",
    "I/O": "orange",
    "other": "gray",
}


@dataclass(frozen=True)
class Plot:
    """What one plot is.

    Parameters
    ----------
    name
        In its path, ``/individual-fpmdask-<name>``.
    columns
        Snapshot → the columns of each of its sources, by name; pure.
    title
        Snapshot → the title, which says what to do where there is nothing to show; pure.
    draw
        Makes the bokeh model of the sources.
    lanes
        The axes along which workers are, of "x" and "y".
    """

    name: str
    columns: Callable[[Snapshot], Mapping[str, Columns]]
    title: Callable[[Snapshot], str]
    draw: Callable[[Sources], Drawn]
    lanes: Sequence[str] = ()


class Drawing:
    """One plot of one document.

    Attributes
    ----------
    root : bokeh model
    sources : dict
    """

    def __init__(self, plot: Plot) -> None:
        self._plot = plot
        self.sources = {name: ColumnDataSource(of) for name, of in plot.columns(Snapshot()).items()}
        self.root, self.title = plot.draw(self.sources)
        self._names: tuple[str, ...] = ()
        self._sent: dict[str, Columns] = {}

    def update(self, snapshot: Snapshot) -> None:
        """Send what has changed."""
        for name, columns in self._plot.columns(snapshot).items():
            send(self.sources[name], columns, self._sent.get(name, {}))
            self._sent[name] = columns
        title = self._plot.title(snapshot)
        if self.title.text != title:
            self.title.text = title
        if self._plot.lanes and snapshot.workers != self._names:
            self._names = snapshot.workers
            for axis in self._plot.lanes:
                name_lanes(getattr(self.root, f"{axis}axis")[0], self._names)


class Page:
    """The plots of one document: all of them show one snapshot.

    What `distributed.dashboard.components.add_periodic_callback` calls a component.
    """

    def __init__(self, snapshots: Snapshots, plots: Sequence[Plot]) -> None:
        self._snapshots = snapshots
        self.drawings = [Drawing(plot) for plot in plots]

    @without_property_validation  # type: ignore[untyped-decorator, unused-ignore]
    def update(self) -> None:
        """Take a snapshot, and send what has changed since the last one."""
        snapshot = self._snapshots.latest()
        for drawing in self.drawings:
            drawing.update(snapshot)


def update_regularly(document: Any, page: Page) -> None:
    """Update a page while a browser shows its document; it ends with the browser's session.

    bokeh keeps a session for half a minute after its page was closed, and calls back all that time.
    With many workers an update takes long: the next one comes so much later.
    """
    document.components = {page}
    reference = weakref.ref(page)  # a callback that held the page would keep both alive
    due = 0.0

    def update() -> None:
        nonlocal due
        session = document.session_context.session
        shown = reference()
        if not session.connection_count or shown is None or time.monotonic() < due:
            return
        began = time.thread_time()
        shown.update()
        spent = time.thread_time() - began
        due = time.monotonic() + min(MOST_SECONDS, spent / PART_OF_TIME)

    document.add_periodic_callback(update, INTERVAL)


def send(source: ColumnDataSource, columns: Columns, before: Columns) -> None:
    """Send columns to the browser: nothing where they are as before, only rows that were added.

    O(elements) comparisons, which cost far less than a message. Numbers go as arrays, which bokeh
    sends as bytes: of lists it looks at each element, ten times as long.
    """
    if before == columns:
        return
    count = len(next(iter(before.values()), ()))
    if count and all(column[:count] == before[name] for name, column in columns.items()):
        source.stream({name: packed(column[count:]) for name, column in columns.items()})
    else:
        source.data = {name: packed(column) for name, column in columns.items()}


def packed(column: list[Any]) -> Any:
    """Return a column of numbers as an array.

    Examples
    --------
    >>> packed([1.0, 2.0]), packed(["a", "b"])
    (array([1., 2.]), ['a', 'b'])
    """
    numbers = column and {type(value) for value in column} <= {int, float}
    return np.array(column, float) if numbers else column


def lanes(snapshot: Snapshot) -> dict[str, int]:
    """Return worker name → its place along an axis of workers."""
    return {name: place for place, name in enumerate(snapshot.workers)}


def name_lanes(axis: Any, names: Sequence[str]) -> None:
    """Write names of workers along an axis, as many as there is room for in its browser."""
    step = -(-len(names) // MOST_NAMES) or 1
    axis.ticker = FixedTicker(ticks=[*range(0, len(names), step)])
    axis.major_label_policy = NoOverlap(min_distance=0)
    axis.major_label_overrides = {place: str(name) for place, name in enumerate(names)}


def new_figure(title: str, x: str, y: str) -> Any:
    """Return an empty figure with axis titles, in the look of Dask's, and a toolbar to zoom."""
    drawn = figure(
        title=title,
        x_axis_label=x,
        y_axis_label=y,
        tools="pan,box_zoom,wheel_zoom,reset,save",
        toolbar_location="above",
        min_border_bottom=50,
        sizing_mode="stretch_both",
    )
    drawn.xaxis.minor_tick_line_alpha = 0
    drawn.yaxis.minor_tick_line_alpha = 0
    return drawn


def lane_figure(title: str, x: str, tips: Sequence[tuple[str, str]]) -> Any:
    """Return a figure with a lane per worker, the first one at the top, and tips of its glyphs."""
    drawn = new_figure(title, x, "worker")
    drawn.add_tools(HoverTool(tooltips=[*tips], point_policy="follow_mouse"))
    drawn.y_range.flipped = True
    drawn.ygrid.visible = False
    return drawn
