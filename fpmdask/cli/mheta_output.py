"""What ``fpmdask mheta`` prints: tables and reasons for people, plain data for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fpmdask.cli.output import print_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fpmdask.mheta import Prediction, SearchResult
    from fpmdask.mheta.document import Document


def print_prediction(prediction: Prediction, found: Document) -> None:
    """Print a row per node and the seconds in all."""
    from fpmdask.mheta import capacity
    from fpmdask.mheta.prediction import PARTS

    if prediction.infeasible:
        print_columns(("node", "rows"), list(enumerate(prediction.distribution.tolist())))
        return
    fits = capacity(found.program, found.machine)
    blocks = [stage for section in prediction.sections for stage in section.blocks]
    most = [max(column) for column in zip(*blocks, strict=True)] or [0] * fits.size
    parts = [prediction.parts[part].tolist() for part in PARTS]
    print_columns(
        ("node", "rows", "fit", "blocks", *PARTS, "end"),
        [
            (node, rows, float(fits[node]), int(most[node]), *(part[node] for part in parts), end)
            for node, (rows, end) in enumerate(
                zip(
                    prediction.distribution.tolist(),
                    prediction.iteration_ends[0].tolist(),
                    strict=True,
                )
            )
        ],
    )
    plural = "" if prediction.iterations == 1 else "s"
    words = f"{prediction.seconds:.4g} s for {prediction.iterations} iteration{plural}"
    if prediction.steady_state_seconds is not None:
        words += (
            f", the first {prediction.iteration_seconds:.4g} s, the last "
            f"{prediction.steady_state_seconds:.4g} s"
        )
    click.echo(words)


def print_spectrum(labels: Sequence[str], points: Any, seconds: Any, best: int) -> None:
    """Print a row per point of the path; the best one is marked."""
    shortest = float(seconds[best])
    rows = [
        (
            label,
            float(second),
            ratio(second, shortest),
            "best" if number == best and math.isfinite(shortest) else "",
            ",".join(map(str, point)),
        )
        for number, (label, second, point) in enumerate(
            zip(labels, seconds.tolist(), points.tolist(), strict=True)
        )
    ]
    print_columns(("at", "seconds", "over best", "", "rows per node"), rows)


def ratio(seconds: float, shortest: float) -> float:
    """Return how many times as long something takes, NaN where the shortest is 0 or ``inf``."""
    return seconds / shortest if 0 < shortest < math.inf else math.nan


def print_lines(lines: Sequence[str]) -> None:
    """Print lines."""
    for line in lines:
        click.echo(line)


def print_plot(plot: Path | None) -> None:
    """Say where the picture is."""
    if plot is not None:
        click.echo(f"drawn: {plot}")


def plot_data(plot: Path | None) -> dict[str, str]:
    """Return where the picture is, as plain data."""
    return {} if plot is None else {"plot": str(plot.resolve())}


def save(figure: Figure, plot: Path) -> None:
    """Write a picture."""
    figure.savefig(plot)


def prediction_data(prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as plain data."""
    from fpmdask.mheta.prediction import PARTS

    sections = [
        {name: getattr(section, name).tolist() for name in ("start", "end", *PARTS)}
        | {"blocks": [stage.tolist() for stage in section.blocks]}
        for section in prediction.sections
    ]
    return {
        "distribution": prediction.distribution.tolist(),
        "iterations": prediction.iterations,
        "accounting": prediction.accounting,
        "seconds": prediction.seconds,
        "node_seconds": prediction.node_seconds.tolist(),
        "iteration_seconds": prediction.iteration_seconds,
        "steady_state_seconds": prediction.steady_state_seconds,
        "parts": {name: values.tolist() for name, values in prediction.parts.items()},
        "sections": sections,
        "infeasible": list(prediction.infeasible),
    }


def search_data(
    result: SearchResult, method: str, of_anchors: Mapping[str, float]
) -> dict[str, Any]:
    """Return the result of a search as plain data."""
    return {
        "method": method,
        "distribution": result.distribution.tolist(),
        "seconds": result.seconds,
        "evaluations": result.evaluations,
        "reason": result.reason,
        "history": [list(entry) for entry in result.history],
        "anchors": dict(of_anchors),
    }
