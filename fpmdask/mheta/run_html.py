"""A run that MHETA has distributed, as HTML for notebooks: inline SVG, no script."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from fpmdask.mheta.html import COLOURS

# Pixels: width and height of the picture, of its margins left and below, and of the space above.
_WIDE, _HIGH, _LEFT, _BELOW, _ABOVE = 640.0, 240.0, 60.0, 24.0, 22.0
# Okabe and Ito's colours, in the order of curves.
_CURVES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")


def spectrum_svg(
    corners: Sequence[str],
    curves: Mapping[str, Sequence[float]],
    marks: Mapping[str, float] | None = None,
    title: str = "",
) -> str:
    """Return seconds along the path of anchors as SVG.

    Parameters
    ----------
    corners
        Names of the corners of the path, which divide it evenly; of one corner it is a point.
    curves
        Name → seconds at points that divide the path evenly, first and last included; what is not
        finite leaves a gap. The first curve is a line, the others are dots.
    marks
        Name → seconds that are no point of the path: dashed lines.
    title
        Above.

    Examples
    --------
    >>> svg = spectrum_svg(["Blk", "Bal", "Blk"], {"predicted": [2.0, 1.0, 2.0]}, {"found": 0.9})
    >>> svg.count("<circle"), svg.count("<polyline"), "found" in svg
    (3, 1, True)
    """
    marks = marks or {}
    known = np.array([s for values in curves.values() for s in values] + list(marks.values()))
    known = known[np.isfinite(known)]
    most = float(known.max()) if known.size else 1.0

    def x(share: float) -> float:
        return _LEFT + share * (_WIDE - _LEFT - 10)

    def y(seconds: float) -> float:
        return _ABOVE + (_HIGH - _ABOVE - _BELOW) * (1 - seconds / (most or 1.0))

    parts = [
        f'<text x="{_LEFT - 6:.0f}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3g} s</text>'
        f'<line x1="{_LEFT:.0f}" x2="{_WIDE:.0f}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
        f'stroke="#DDDDDD"/>'
        for value in (0.0, most / 2, most)
    ]
    last = max(1, len(corners) - 1)
    for number, corner in enumerate(corners):
        anchor = "start" if not number else "end" if number == last else "middle"
        at = x(number / last)
        parts.append(
            f'<text x="{at:.1f}" y="{_HIGH - 6:.0f}" text-anchor="{anchor}">{escape(corner)}</text>'
        )
    for number, (name, values) in enumerate(curves.items()):
        colour = _CURVES[number % len(_CURVES)]
        steps = max(1, len(values) - 1)
        points = [(x(n / steps), y(s), s) for n, s in enumerate(values) if np.isfinite(s)]
        if not number and len(points) == len(values):
            line = " ".join(f"{at:.1f},{high:.1f}" for at, high, _ in points)
            parts.append(
                f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{line}"/>'
            )
        parts += [
            f'<circle cx="{at:.1f}" cy="{high:.1f}" r="{2 if not number else 4}" fill="{colour}">'
            f"<title>{escape(name)}: {seconds:.4g} s</title></circle>"
            for at, high, seconds in points
        ]
        parts.append(_legend(number, name, colour))
    for number, (name, seconds) in enumerate(marks.items(), len(curves)):
        colour = _CURVES[number % len(_CURVES)]
        parts.append(
            f'<line x1="{_LEFT:.0f}" x2="{_WIDE:.0f}" y1="{y(seconds):.1f}" y2="{y(seconds):.1f}" '
            f'stroke="{colour}" stroke-dasharray="4 3"><title>{escape(name)}: {seconds:.4g} s'
            f"</title></line>" + _legend(number, name, colour)
        )
    head = f'<text x="{_WIDE:.0f}" y="12" text-anchor="end">{escape(title)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDE:.0f}" height="{_HIGH:.0f}" '
        f'font-family="sans-serif" font-size="11">{head}{"".join(parts)}</svg>'
    )


def run_html(mheta: Mapping[str, Any]) -> str:
    """Return what the report of a run says of its distribution, as HTML.

    Parameters
    ----------
    mheta
        `fpmdask.runtime.report.Report.mheta`.
    """
    shown = [f"<p>{escape(mheta.get('why', ''))}</p>"]
    if spectrum := mheta.get("spectrum"):
        found = [one["best_seconds"] for one in mheta.get("choices", ())]
        marks = {"found": found[-1]} if found else {}
        shown.append(spectrum_svg(spectrum["corners"], {"predicted": spectrum["seconds"]}, marks))
    shown += [_phase(mheta["workers"], phase) for phase in mheta.get("phases", ())]
    return f"<div>{''.join(shown)}</div>"


def _phase(workers: Sequence[str], phase: Mapping[str, Any]) -> str:
    """Return a table of the predicted and measured seconds of each node."""
    first, last = phase["first"], phase["first"] + phase["count"] - 1
    sides = [side for side in ("predicted", "measured") if phase.get(side)]
    head = "".join(f"<th>{part} {side}</th>" for part in COLOURS for side in sides)
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{phase['rows'][node]}</td>"
        + "".join(f"<td>{phase[side][part][node]:.3g}</td>" for part in COLOURS for side in sides)
        + "</tr>"
        for node, name in enumerate(workers)
    )
    words = ", ".join(f"{side} {max(phase[side]['seconds']):.4g} s" for side in sides)
    return (
        f"<p>iterations {first} to {last}: {words} each</p>"
        f"<table><tr><th>worker</th><th>rows</th>{head}</tr>{rows}</table>"
    )


def _legend(number: int, name: str, colour: str) -> str:
    left = _LEFT + 110 * number
    return (
        f'<rect x="{left:.0f}" y="3" width="10" height="10" fill="{colour}"/>'
        f'<text x="{left + 14:.0f}" y="12">{escape(name)}</text>'
    )
