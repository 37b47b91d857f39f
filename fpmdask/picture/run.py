"""A run as a picture: the speed functions, and the straight line that balances them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fpmdask.errors import FpmdaskError
from fpmdask.picture.style import COLOURS, INK, MARKERS, PALE, plain, require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fpmdask.runtime.report import Report

# Height of a label's line, as a share of the axis.
LINE = 0.062


def figure(
    report: Report,
    *,
    even: Mapping[str, float] | None = None,
    balanced: Mapping[str, float] | None = None,
    order: Sequence[str] | None = None,
    unit: str = "units",
    operations_per_unit: float | None = None,
    fits: Mapping[str, float] | None = None,
    title: str = "",
) -> Figure:
    """Draw what a run found out about its workers.

    Parameters
    ----------
    report : Report
        A run that measured.
    even, balanced : mapping, optional
        Worker name → seconds of the same work under an even split and in the run's shares, both or
        neither: they are drawn beside the speeds.
    order : sequence of str, optional
        Names of the workers in the order to show them; the report's by default.
    unit : str
        What a unit is, for the labels.
    operations_per_unit : float, optional
        Floating-point operations that the timed kernel does per unit; speeds are in Gflop/s then,
        in units per second otherwise.
    fits : mapping, optional
        Worker name → units that fit into its memory, to be pointed at.
    title : str
        Above everything.

    Returns
    -------
    matplotlib.figure.Figure
        Left: speed as a function of units for every worker, its measured points, the share that
        it got (ring), and the line through the origin that meets the curves where their units sum
        up to all. Right, with `even`: seconds per worker.

    Raises
    ------
    FpmdaskError
        If matplotlib is not installed or the run measured nothing.

    References
    ----------
    Lastovetsky and Reddy (2009), Figs. 1 and 2.
    """
    require("matplotlib")
    from matplotlib.figure import Figure

    if not report.models:
        raise FpmdaskError(
            f"run {report.run} measured nothing, so that there are no speeds to draw; let DFPA "
            "find its distribution"
        )
    names = [name for name in order or report.workers if name in report.models]
    drawn = Figure(
        figsize=(12.5 if even else 7.8, max(5.2, 0.36 * len(names))), dpi=120, layout="constrained"
    )
    axes = drawn.subplots(1, 2 if even else 1, width_ratios=(3, 2) if even else None, squeeze=False)
    scale = 1.0 if operations_per_unit is None else operations_per_unit / 1e9
    _speeds(axes[0, 0], report, names, unit, scale)
    axes[0, 0].set_ylabel(
        f"speed of the timed kernel, {unit}/s" if operations_per_unit is None else "speed, Gflop/s"
    )
    if even is not None and balanced is not None:
        _seconds(axes[0, 1], even, balanced, names)
    if fits:
        _point_at(axes[0, 0], report, names, fits, scale)
    if title:
        drawn.suptitle(title, fontsize=14, color=INK)
    return drawn


def _speeds(axes: Any, report: Report, names: Sequence[str], unit: str, scale: float) -> None:
    shares = dict(zip(report.workers, report.distribution.tolist(), strict=True))
    models = report.models
    seconds_of_all = _balanced_seconds([models[name] for name in names], sum(shares.values()))
    most = 1.06 * max(max(shares.values()), *(models[name].points[0][-1] for name in names))
    top = 1.12 * scale * max(float((x / t).max()) for x, t in _points(report, names))
    sizes = np.linspace(most / 1000, most, 1000)
    ends = []
    for name, colour, marker in zip(names, *_styles(len(names)), strict=True):
        model, share = models[name], float(shares[name])
        speed = scale * model.speed(sizes)
        axes.plot(sizes, speed, color=colour, lw=1.8)
        units, seconds = model.points
        axes.plot(
            units, scale * units / seconds, marker, color=colour, ms=6.5, mec="white", zorder=4
        )
        meets = scale * float(model.speed(share))
        axes.plot((share, share), (0, meets), ":", color=colour, lw=1.3)
        axes.plot(share, meets, "o", mfc="none", mec=INK, ms=13, mew=1.2, zorder=5)
        ends.append((float(speed[-1]), f"{name}: {share:.0f}", colour))
    axes.plot((0, most), (0, scale * most / seconds_of_all), color=INK, lw=1.4, ls=(0, (6, 3)))
    axes.set(xlim=(0, most), ylim=(0, top), xlabel=f"{unit} per worker")
    _label_ends(axes, ends, top)
    _explain(axes, seconds_of_all)
    plain(axes)


def _points(report: Report, names: Sequence[str]) -> list[Any]:
    return [report.models[name].points for name in names]


def _balanced_seconds(models: Sequence[Any], units: float) -> float:
    """Return the time in which all models together do `units`."""
    low, high = 0.0, 1.0
    while sum(model.units_within(high) for model in models) < units:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        enough = sum(model.units_within(middle) for model in models) >= units
        low, high = (low, middle) if enough else (middle, high)
    return high


def _label_ends(axes: Any, ends: Sequence[tuple[float, str, str]], top: float) -> None:
    """Write each worker's name beside the end of its curve, none over another."""
    line = min(LINE, 1.0 / len(ends))
    rising = sorted(ends)
    heights, floor = [], 0.0
    for speed, _, _ in rising:
        heights.append(max(speed / top, floor))
        floor = heights[-1] + line
    ceiling = 1.0
    for i in reversed(range(len(heights))):  # what was pushed above the axes comes down again
        heights[i] = min(heights[i], ceiling)
        ceiling = heights[i] - line
    for height, (_, text, colour) in zip(heights, rising, strict=True):
        axes.text(1.015, height, text, color=colour, va="center", transform=axes.transAxes)


def _explain(axes: Any, seconds: float) -> None:
    from matplotlib.lines import Line2D

    entries = [
        Line2D([], [], marker="o", color=INK, mec="white", ms=6.5, lw=1.8),
        Line2D([], [], color=INK, lw=1.4, ls=(0, (6, 3))),
        Line2D([], [], marker="o", color="none", mfc="none", mec=INK, ms=11),
    ]
    labels = [
        "speed function, measured points",
        f"equal time, {_duration(seconds)}",
        "balanced share",
    ]
    # Above the axes: there are no data to cover.
    axes.legend(
        entries,
        labels,
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=3,
        frameon=False,
        fontsize=9.5,
        handlelength=2.2,
        columnspacing=1.4,
        borderaxespad=0.3,
    )


def _point_at(
    axes: Any, report: Report, names: Sequence[str], fits: Mapping[str, float], scale: float
) -> None:
    """Say where the memory of workers is full."""
    for name, colour in zip(names, _styles(len(names))[0], strict=True):
        if name in fits:
            at = fits[name], scale * float(report.models[name].speed(fits[name]))
            axes.annotate(
                f"{name}'s memory is full",
                at,
                (16, 44),
                textcoords="offset points",
                color=colour,
                arrowprops={"arrowstyle": "->", "color": colour},
            )


def _seconds(
    axes: Any, before: Mapping[str, float], after: Mapping[str, float], names: Sequence[str]
) -> None:
    rows = np.arange(len(names))
    slowest = max(*before.values(), *after.values())
    for offset, seconds, colours, weight in (
        (-0.2, before, [PALE] * len(names), "normal"),
        (0.2, after, _styles(len(names))[0], "bold"),
    ):
        values = [seconds.get(name, 0.0) for name in names]
        axes.barh(rows + offset, values, 0.36, color=colours)
        for row, value in zip(rows + offset, values, strict=True):
            axes.text(
                value + 0.012 * slowest,
                row,
                f"{value:.1f}",
                va="center",
                fontsize=9.5,
                color=INK,
                weight=weight,
            )
    axes.set_yticks(rows, names)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.12 * slowest), xlabel="seconds until the worker had finished")
    axes.set_title("even split (grey) and balanced (colour)", fontsize=10.5, color=INK, loc="left")
    plain(axes)
    axes.tick_params(axis="y", length=0)


def _styles(count: int) -> tuple[list[str], list[str]]:
    return (
        [COLOURS[i % len(COLOURS)] for i in range(count)],
        [MARKERS[(i + i // len(COLOURS)) % len(MARKERS)] for i in range(count)],
    )


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
