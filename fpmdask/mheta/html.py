"""Predictions and searches as HTML for notebooks: inline SVG, no script, nothing to load."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fpmdask.mheta.prediction import Prediction
    from fpmdask.mheta.search.result import SearchResult

# Okabe and Ito's colours, which colour-blind people can tell apart; waiting is pale.
COLOURS: Mapping[str, str] = {
    "compute": "#0072B2",
    "io": "#D55E00",
    "send": "#009E73",
    "wait": "#D0D0D0",
    "receive": "#E69F00",
}
# Pixels: of a label, of the longest bar, between two bars, and the height of a history.
_LABEL, _LONG, _LINE, _HISTORY = 150.0, 420.0, 18.0, 120.0
# Nodes that are drawn; the others are said.
_MOST = 64


def prediction_html(prediction: "Prediction") -> str:
    """Return a prediction as HTML: seconds, and a stacked bar per node for the first iteration.

    Parameters
    ----------
    prediction : Prediction

    Returns
    -------
    str
        A ``<div>``; each part of a bar has a tooltip with its seconds.
    """
    if prediction.infeasible:
        nodes = ", ".join(map(str, prediction.infeasible))
        words = f"<b>infeasible</b>: too many rows on nodes {nodes}"
        return f"<div>{words}{_rows_svg(prediction.distribution.tolist())}</div>"
    plural = "" if prediction.iterations == 1 else "s"
    words = f"<b>{prediction.seconds:.4g} s</b> for {prediction.iterations} iteration{plural}"
    if prediction.steady_state_seconds is not None:
        words += (
            f", {prediction.iteration_seconds:.4g} s the first, "
            f"{prediction.steady_state_seconds:.4g} s the last"
        )
    return (
        f"<div>{words} (accounting: {escape(prediction.accounting)}){_parts_svg(prediction)}</div>"
    )


def search_html(result: "SearchResult") -> str:
    """Return the result of a search as HTML: its history, and the bars of what it found.

    Parameters
    ----------
    result : SearchResult

    Returns
    -------
    str
        A ``<div>``; the bars are rows per node where the search was given no `Evaluator`.
    """
    words = (
        f"<b>{result.seconds:.4g} s</b> after {result.evaluations} evaluations "
        f"({escape(result.reason)})"
    )
    bars = (
        _rows_svg(result.distribution.tolist())
        if result.prediction is None
        else prediction_html(result.prediction)
    )
    return f"<div>{words}{_history_svg(result.history, result.evaluations)}{bars}</div>"


def _parts_svg(prediction: "Prediction") -> str:
    """Return a stacked bar per node: how long it computes, does I/O, sends, waits and receives."""
    longest = max(prediction.iteration_seconds, np.finfo(float).tiny)
    bars = []
    for node, rows in enumerate(prediction.distribution.tolist()[:_MOST]):
        left, spans = _LABEL, []
        for part, colour in COLOURS.items():
            seconds = float(prediction.parts[part][node])
            width = seconds / longest * _LONG
            spans.append(_span(left, node, width, colour, f"{part} {seconds:.4g} s"))
            left += width
        end = float(prediction.iteration_ends[0, node])
        bars.append(_label(node, rows) + "".join(spans) + _text(left + 5, node, f"{end:.4g} s"))
    legend = "".join(
        f'<rect x="{_LABEL + 80 * i:.0f}" y="3" width="10" height="10" fill="{colour}"/>'
        f'<text x="{_LABEL + 80 * i + 14:.0f}" y="12">{part}</text>'
        for i, (part, colour) in enumerate(COLOURS.items())
    )
    return _svg(bars, prediction.distribution.size, legend)


def _rows_svg(distribution: Sequence[int]) -> str:
    """Return a bar per node: its rows."""
    longest = max(max(distribution), 1)
    bars = [
        _label(node, rows)
        + _span(_LABEL, node, rows / longest * _LONG, COLOURS["compute"], f"{rows} rows")
        for node, rows in enumerate(distribution[:_MOST])
    ]
    return _svg(bars, len(distribution), "")


def _history_svg(history: Sequence[tuple[int, float]], evaluations: int) -> str:
    """Return the best seconds as a function of the distributions that were predicted."""
    finite = [(at, seconds) for at, seconds in history if np.isfinite(seconds)]
    if not finite:
        return "<p>no feasible distribution was found</p>"
    most, least = finite[0][1], finite[-1][1]
    span, width = (most - least) or 1.0, _LONG / max(evaluations, 1)
    steps, before = [], finite[0][1]
    for at, seconds in [*finite, (evaluations, least)]:
        x = _LABEL + at * width
        steps += [
            f"{x:.1f},{_y(before, least, span):.1f}",
            f"{x:.1f},{_y(seconds, least, span):.1f}",
        ]
        before = seconds
    high = _HISTORY + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LABEL + _LONG + 80:.0f}" '
        f'height="{high:.0f}" font-family="sans-serif" font-size="11">'
        f'<polyline fill="none" stroke="{COLOURS["compute"]}" stroke-width="2" '
        f'points="{" ".join(steps)}"/>'
        f'<text x="{_LABEL - 6:.0f}" y="14" text-anchor="end">{most:.4g} s</text>'
        f'<text x="{_LABEL - 6:.0f}" y="{_HISTORY + 4:.0f}" text-anchor="end">{least:.4g} s</text>'
        f'<text x="{_LABEL:.0f}" y="{high - 8:.0f}">0</text>'
        f'<text x="{_LABEL + _LONG:.0f}" y="{high - 8:.0f}" text-anchor="end">'
        f"{evaluations} evaluations</text></svg>"
    )


def _y(seconds: float, least: float, span: float) -> float:
    return 10 + (_HISTORY - 10) * (1 - (seconds - least) / span)


def _top(node: int) -> float:
    return 20 + node * _LINE


def _span(left: float, node: int, width: float, colour: str, words: str) -> str:
    if width <= 0:
        return ""
    return (
        f'<rect x="{left:.2f}" y="{_top(node):.0f}" width="{width:.2f}" '
        f'height="{_LINE - 4:.0f}" fill="{colour}"><title>node {node}: {words}</title></rect>'
    )


def _label(node: int, rows: int) -> str:
    plural = "row" if rows == 1 else "rows"
    return (
        f'<text x="{_LABEL - 6:.0f}" y="{_top(node) + 11:.0f}" text-anchor="end">'
        f"node {node}: {rows} {plural}</text>"
    )


def _text(left: float, node: int, words: str) -> str:
    return f'<text x="{left:.1f}" y="{_top(node) + 11:.0f}">{words}</text>'


def _svg(bars: Sequence[str], nodes: int, legend: str) -> str:
    high = _top(len(bars)) + (_LINE if nodes > len(bars) else 4)
    more = _text(_LABEL, len(bars), f"and {nodes - len(bars)} more nodes")
    return (
        f'<br><svg xmlns="http://www.w3.org/2000/svg" width="{_LABEL + _LONG + 80:.0f}" '
        f'height="{high:.0f}" font-family="sans-serif" font-size="11">{legend}{"".join(bars)}'
        f"{more if nodes > len(bars) else ''}</svg>"
    )
