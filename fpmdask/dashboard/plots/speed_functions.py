"""Speed of each worker as a function of its units, and the line that balances them.

On the line through the origin all workers take the same time: it crosses each speed function at the
worker's share (Lastovetsky and Reddy, 2007).
"""

from __future__ import annotations

from collections.abc import Mapping

from bokeh.models import HoverTool

from fpmdask.dashboard.figures import WORKER_COLOURS, Columns, Drawn, Plot, Sources, new_figure
from fpmdask.dashboard.state import Snapshot, SpeedFunction, Speeds

# How far a curve goes beyond the largest point.
BEYOND = 1.1


def columns(snapshot: Snapshot) -> Mapping[str, Columns]:
    """Return pieces of ``curves``, measured ``points`` with intervals, ``shares`` and the ``line``.

    Examples
    --------
    >>> from fpmdask.models import PiecewiseLinearModel
    >>> model = PiecewiseLinearModel.from_points([10, 20], [1.0, 4.0])
    >>> speeds = Speeds("sort", (SpeedFunction("a", model, {10.0: 0.5}, share=20),), seconds=4.0)
    >>> found = columns(Snapshot(speeds=speeds))
    >>> found["curves"]["x0"], found["curves"]["y0"]  # constant outside the measured points
    ([0.0, 10.0, 20.0], [10.0, 10.0, 5.0])
    >>> found["points"]["speed"], found["points"]["low"], found["points"]["high"]
    ([10.0, 5.0], [6.666666666666667, 5.0], [20.0, 5.0])
    >>> found["shares"]["units"], found["line"]["units"], found["line"]["speed"]
    ([20.0], [0.0, 22.0], [0.0, 5.5])
    """
    curves: Columns = {name: [] for name in ("x0", "y0", "x1", "y1", "color")}
    points: Columns = {
        name: [] for name in ("worker", "units", "speed", "low", "high", "seconds", "color")
    }
    shares: Columns = {"worker": [], "units": [], "speed": [], "color": []}
    line: Columns = {"units": [], "speed": []}
    speeds = snapshot.speeds
    if speeds is not None:
        most = BEYOND * max(_furthest(one) for one in speeds.functions)
        top = 0.0
        for n, one in enumerate(speeds.functions):
            colour = WORKER_COLOURS[n % len(WORKER_COLOURS)]
            x, seconds = one.model.points
            top = max(top, float((x / seconds).max()))
            # linear between its points: nothing else need be sent
            edges = [0.0, *x.tolist(), most]
            speed = one.model.speed(x).tolist()
            heights = [speed[0], *speed, speed[-1]]
            curves["x0"] += edges[:-1]
            curves["y0"] += heights[:-1]
            curves["x1"] += edges[1:]
            curves["y1"] += heights[1:]
            curves["color"] += [colour] * (len(edges) - 1)
            for units, spent in zip(x.tolist(), seconds.tolist(), strict=True):
                half = min(one.half_widths.get(units, 0.0), 0.9 * spent)
                low, high = units / (spent + half), units / (spent - half)
                row = (one.worker, units, units / spent, low, high, spent, colour)
                for name, value in zip(points, row, strict=True):
                    points[name].append(value)
            if one.share:
                units = float(one.share)
                crossing = (one.worker, units, float(one.model.speed(units)), colour)
                for name, value in zip(shares, crossing, strict=True):
                    shares[name].append(value)
        line = _line(speeds, most, top)
    return {"curves": curves, "points": points, "shares": shares, "line": line}


def _furthest(one: SpeedFunction) -> float:
    return max(float(one.model.points[0][-1]), float(one.share or 0.0))


def _line(speeds: Speeds, most: float, top: float) -> Columns:
    """Return the line on which all take the same time, as far as the picture goes."""
    if not speeds.seconds:
        return {"units": [], "speed": []}
    end = min(most, BEYOND * top * speeds.seconds)
    return {"units": [0.0, end], "speed": [0.0, end / speeds.seconds]}


def title(snapshot: Snapshot) -> str:
    """Return the title."""
    speeds = snapshot.speeds
    if speeds is None:
        return "Speed functions: nothing is known of the workers yet. Run balancer.matmul(A, B)"
    line = "" if not speeds.seconds else f"; on the line all take {speeds.seconds:.3g} s"
    return f"Speed functions, {speeds.kernel}{line}"


def draw(sources: Sources) -> Drawn:
    """Return the figure and its title."""
    tips = [
        ("worker", "@worker"),
        ("units", "@units{0,0.[0]}"),
        ("speed", "@speed{0,0.[00]} units/s"),
        ("interval", "@low{0,0.[00]} to @high{0,0.[00]} units/s"),
        ("measured", "@seconds{0.000} s"),
    ]
    drawn = new_figure(title(Snapshot()), "units", "units per second")
    drawn.x_range.start = drawn.y_range.start = 0
    curves = drawn.segment(
        "x0",
        "y0",
        "x1",
        "y1",
        source=sources["curves"],
        line_color="color",
        line_width=2,
        alpha=0.8,
    )
    drawn.segment(
        "units", "low", "units", "high", source=sources["points"], line_color="color", line_width=2
    )
    points = drawn.scatter("units", "speed", source=sources["points"], size=7, color="color")
    drawn.line("units", "speed", source=sources["line"], color="black", line_dash="dashed")
    drawn.scatter(
        "units",
        "speed",
        source=sources["shares"],
        size=11,
        marker="diamond",
        fill_color="white",
        line_color="color",
        line_width=2,
    )
    # An interval of two repetitions may be ten times as high as all curves, and would flatten them.
    drawn.y_range.renderers = [curves, points]
    drawn.add_tools(HoverTool(renderers=[points], tooltips=tips))
    return drawn, drawn.title


PLOT = Plot("speed-functions", columns, title, draw)
