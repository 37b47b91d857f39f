"""MHETA's predictions as pictures: seconds along the path of anchors, and what nodes do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fpmdask.mheta.html import COLOURS as PARTS
from fpmdask.picture.style import COLOURS, INK, MARKERS, PALE, plain, require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fpmdask.mheta import Prediction, SearchResult


def spectrum_figure(
    labels: Sequence[str],
    curves: Mapping[str, Sequence[float]],
    prediction: Prediction | None = None,
    title: str = "",
) -> Figure:
    """Draw predicted seconds along a path of distributions, the best one marked.

    Parameters
    ----------
    labels : sequence of str, length m
        What the points are; those that are not empty are written under the axis.
    curves : mapping of str to sequence of float, length m
        Seconds of each program at each point; infeasible ones, ``inf``, leave a gap.
    prediction : Prediction, optional
        Of the best distribution: its nodes' time is drawn as stacked bars to the right.
    title : str
        Above everything.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    FpmdaskError
        If matplotlib is not installed.

    References
    ----------
    Nakazawa, Lowenthal and Zhou (2005), Figs. 10 and 11.
    """
    require("matplotlib")
    from matplotlib.figure import Figure

    two = prediction is not None
    drawn = Figure(figsize=(13 if two else 8, 4.6), dpi=120, layout="constrained")
    axes = drawn.subplots(1, 2 if two else 1, width_ratios=(3, 2) if two else None, squeeze=False)
    draw_spectrum(axes[0, 0], labels, curves)
    if prediction is not None:
        draw_parts(axes[0, 1], prediction)
        axes[0, 1].set_title("the best: what each node does", fontsize=10.5, loc="left", color=INK)
    if title:
        drawn.suptitle(title, fontsize=13, color=INK)
    return drawn


def prediction_figure(prediction: Prediction, title: str = "") -> Figure:
    """Draw what each node does in the first iteration, as stacked bars.

    Parameters
    ----------
    prediction : Prediction
    title : str
        Above everything.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    FpmdaskError
        If matplotlib is not installed.
    """
    require("matplotlib")
    from matplotlib.figure import Figure

    high = max(3.0, 0.32 * prediction.distribution.size + 1.2)
    drawn = Figure(figsize=(8, high), dpi=120, layout="constrained")
    draw_parts(drawn.subplots(), prediction)
    drawn.suptitle(title or f"{prediction.seconds:.4g} s", fontsize=13, color=INK)
    return drawn


def search_figure(result: SearchResult, title: str = "") -> Figure:
    """Draw how a search came to its result, and what the nodes do then.

    Parameters
    ----------
    result : SearchResult
    title : str
        Above everything.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    FpmdaskError
        If matplotlib is not installed.
    """
    require("matplotlib")
    from matplotlib.figure import Figure

    two = result.prediction is not None
    drawn = Figure(figsize=(13 if two else 8, 4.6), dpi=120, layout="constrained")
    axes = drawn.subplots(1, 2 if two else 1, squeeze=False)
    at = [evaluations for evaluations, _ in result.history] + [result.evaluations]
    best = [seconds for _, seconds in result.history] + [result.seconds]
    axes[0, 0].step(at, best, where="post", color=COLOURS[0], lw=1.8)
    axes[0, 0].set(xlabel="distributions predicted", ylabel="seconds of the best so far")
    plain(axes[0, 0])
    if two:
        draw_parts(axes[0, 1], result.prediction)
    if title:
        drawn.suptitle(title, fontsize=13, color=INK)
    return drawn


def draw_spectrum(axes: Any, labels: Sequence[str], curves: Mapping[str, Sequence[float]]) -> None:
    """Draw one curve per program; its best point has a ring."""
    at = np.arange(len(labels))
    for number, (name, values) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        seconds = np.asarray(values, dtype=float)
        marker = MARKERS[number % len(MARKERS)]
        axes.plot(at, seconds, color=colour, lw=1.6, marker=marker, ms=3.5, label=name)
        if np.isfinite(seconds).any():
            best = int(np.argmin(seconds))
            axes.plot(best, seconds[best], "o", mfc="none", mec=INK, ms=12, mew=1.3)
    corners = [i for i, label in enumerate(labels) if label]
    axes.set_xticks(corners, [labels[i] for i in corners])
    for corner in corners:
        axes.axvline(corner, color=PALE, lw=0.7, zorder=0)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("predicted seconds")
    if len(curves) > 1:
        axes.legend(frameon=False, fontsize=9)
    plain(axes)


def draw_parts(axes: Any, prediction: Prediction) -> None:
    """Draw a stacked bar per node: computing, I/O, sending, waiting, receiving."""
    nodes = np.arange(prediction.distribution.size)
    left = np.zeros(nodes.size)
    for part, colour in PARTS.items():
        if prediction.infeasible:
            break
        axes.barh(nodes, prediction.parts[part], left=left, color=colour, label=part, height=0.7)
        left = left + prediction.parts[part]
    rows = prediction.distribution.tolist()
    axes.set_yticks(nodes, [f"{node}: {x} rows" for node, x in enumerate(rows)])
    axes.invert_yaxis()
    axes.set_xlabel("seconds of the first iteration")
    if not prediction.infeasible:
        axes.legend(frameon=False, fontsize=9, ncols=5, loc="lower left", bbox_to_anchor=(0, -0.25))
    plain(axes)
    axes.tick_params(axis="y", length=0)
