"""``fpmdask mheta``: predictions for out-of-core iterative programs, offline."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fpmdask.cli.mheta_output import (
    plot_data,
    prediction_data,
    print_lines,
    print_plot,
    print_prediction,
    print_spectrum,
    ratio,
    save,
    search_data,
)
from fpmdask.cli.output import json_option, print_json
from fpmdask.cli.reading import read_json
from fpmdask.errors import PartitionError

if TYPE_CHECKING:
    from fpmdask.mheta import Prediction, SearchResult
    from fpmdask.mheta.document import Document

SUFFIXES = (".png", ".svg", ".pdf")
SEARCHES = ("gbs", "genetic", "annealing", "random_search", "exhaustive")


def _plot(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Refuse at once what cannot be drawn."""
    if value is None:
        return None
    if value.suffix.lower() not in SUFFIXES:
        raise click.BadParameter(f"cannot draw {value}; its name must end in {', '.join(SUFFIXES)}")
    if not value.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {value.absolute().parent}; make it first")
    from fpmdask.picture.style import require

    require("matplotlib")
    return value


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what all three commands take."""
    for option in (
        json_option,
        click.option(
            "--plot",
            type=click.Path(path_type=Path, dir_okay=False),
            callback=_plot,
            help="Draw it into this file (.png, .svg or .pdf).",
        ),
        click.argument("file", type=click.Path(path_type=Path)),
    ):
        command = option(command)
    return command


@click.group()
def mheta() -> None:
    """Predict out-of-core iterative programs, and find their best distribution.

    FILE is a JSON document with "program", "machine" and "rows" (or "distribution"), as
    fpmdask.mheta.document describes it.
    """


@mheta.command()
@click.option(
    "--distribution",
    metavar="ROWS",
    help="Rows per node, 512,256,..., or Blk, I-C, I-C/Bal, Bal; the document's, else Blk.",
)
@click.option("--iterations", type=int, help="How many iterations; the document's, else 1.")
@click.option(
    "--accounting",
    type=click.Choice(["exact", "paper"]),
    help="What is charged for I/O; the document's, else exact.",
)
@_options
def predict(
    file: Path,
    distribution: str | None,
    iterations: int | None,
    accounting: str | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Predict how long a program takes for one distribution, and on what each node spends it."""
    from fpmdask.mheta import predict as predicted
    from fpmdask.mheta.explain import explain

    found = _document(file)
    words: Any = {"accounting": accounting or found.accounting}
    with _named(file):
        rows = _shares(found, distribution)
        iterations = found.iterations if iterations is None else iterations
        problem = (found.program, found.machine, rows)
        prediction = predicted(*problem, iterations=iterations, **words)
        why = explain(*problem, **words)
    if plot is not None:
        from fpmdask.picture.mheta import prediction_figure

        save(prediction_figure(prediction), plot)
    if as_json:
        print_json(prediction_data(prediction) | {"why": why} | plot_data(plot))
        return
    print_prediction(prediction, found)
    print_lines(why)
    print_plot(plot)


@mheta.command()
@click.option("--steps", type=int, default=8, show_default=True, help="Points a leg.")
@_options
def spectrum(file: Path, steps: int, plot: Path | None, as_json: bool) -> None:
    """Predict along the path Blk → I-C → I-C/Bal → Bal → Blk, and say why the best one is best."""
    from fpmdask.mheta import anchors, predict_many
    from fpmdask.mheta import predict as predicted
    from fpmdask.mheta import spectrum as path_of
    from fpmdask.mheta.spectrum_path import corner_names

    found = _document(file)
    problem = (found.program, found.machine)
    words: Any = {"iterations": found.iterations, "accounting": found.accounting}
    with _named(file):
        points = path_of(*problem, found.rows, steps)
        seconds = predict_many(*problem, points, **words)
        names = corner_names(anchors(*problem, found.rows))
    labels = _labels(names, steps, len(points))
    best = int(seconds.argmin())
    why = _reasons(found, labels, points, seconds, best)
    if plot is not None:
        from fpmdask.picture.mheta import spectrum_figure

        ticks = [label if i % steps == 0 else "" for i, label in enumerate(labels)]
        shown: Prediction | None = predicted(*problem, points[best], **words)
        if shown is not None and shown.infeasible:
            shown = None
        save(spectrum_figure(ticks, {file.stem: seconds.tolist()}, shown), plot)
    if as_json:
        table = [
            {"at": label, "distribution": point, "seconds": second}
            for label, point, second in zip(labels, points.tolist(), seconds.tolist(), strict=True)
        ]
        print_json({"spectrum": table, "best": table[best], "why": why} | plot_data(plot))
        return
    print_spectrum(labels, points, seconds, best)
    print_lines(why)
    print_plot(plot)


@mheta.command()
@click.option("--method", type=click.Choice(SEARCHES), default="gbs", show_default=True)
@click.option("--budget", type=int, default=10_000, show_default=True, help="Most predictions.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@_options
def search(
    file: Path, method: str, budget: int, seed: int, plot: Path | None, as_json: bool
) -> None:
    """Search for the distribution with the shortest prediction."""
    import numpy as np

    from fpmdask.mheta import anchors, evaluator
    from fpmdask.mheta import search as searches
    from fpmdask.mheta.explain import explain

    found = _document(file)
    words: Any = {"iterations": found.iterations, "accounting": found.accounting}
    predicts = evaluator(found.program, found.machine, **words)
    run, rng = getattr(searches, method), np.random.default_rng(seed)
    with _named(file):
        corners = anchors(found.program, found.machine, found.rows)
        start = np.array([*corners.values(), corners["Blk"]])
        result: SearchResult = run(predicts, start, rng=rng, budget=budget)
    of_anchors = dict(zip(corners, predicts(start).tolist(), strict=False))
    accounting = found.accounting
    why = explain(found.program, found.machine, result.distribution, accounting=accounting)
    if plot is not None:
        from fpmdask.picture.mheta import search_figure

        save(search_figure(result, f"{method}: {result.seconds:.4g} s"), plot)
    if as_json:
        print_json(search_data(result, method, of_anchors) | {"why": why} | plot_data(plot))
        return
    print_prediction(predicts.prediction(result.distribution), found)
    print_lines(why)
    others = ", ".join(f"{name} {seconds:.4g} s" for name, seconds in of_anchors.items())
    click.echo(
        f"{method}: {result.seconds:.4g} s after {result.evaluations} predictions "
        f"({result.reason}); {others}"
    )
    print_plot(plot)


def _document(file: Path) -> Document:
    from fpmdask.mheta.document import Document

    with _named(file):
        return Document.from_dict(read_json(file))


@contextlib.contextmanager
def _named(file: Path) -> Iterator[None]:
    """Have errors name the file that they come from."""
    try:
        yield
    except PartitionError as error:
        raise PartitionError(f"{file}: {error}") from error


def _shares(found: Document, text: str | None) -> Any:
    """Return the distribution that was asked for."""
    from fpmdask.mheta import anchors

    if text is None and found.distribution is not None:
        return found.distribution
    corners = anchors(found.program, found.machine, found.rows)
    if text is None or text in corners:
        return corners["Blk" if text is None else text]
    try:
        rows = [int(part) for part in text.split(",")]
    except ValueError:
        raise PartitionError(
            f"--distribution {text!r} is neither rows per node, 512,256,..., nor one of "
            f"{', '.join(corners)}"
        ) from None
    if sum(rows) != found.rows:
        raise PartitionError(f"--distribution {text!r} sums to {sum(rows)}; rows is {found.rows}")
    return rows


def _labels(names: Sequence[str], steps: int, count: int) -> list[str]:
    """Return what each point of the path is: a corner, or a part of the way between two."""
    labels = []
    for at in range(count):
        leg, step = divmod(at, steps)
        between = f"{names[leg]} → {names[leg + 1]} {step}/{steps}" if step else names[leg]
        labels.append(between)
    return labels


def _reasons(found: Document, labels: Sequence[str], points: Any, seconds: Any, best: int) -> Any:
    """Return what makes the best point best and the corners longer, a line each."""
    from fpmdask.mheta.explain import explain

    def at(number: int) -> str:
        words = explain(found.program, found.machine, points[number], accounting=found.accounting)
        return "; ".join(words)

    if not math.isfinite(seconds[best]):
        return [f"no point of the path is feasible: {at(best)}"]
    lines = [f"best at {labels[best]}: {at(best)}"]
    for number, label in enumerate(labels[:-1]):
        if " → " not in label and number != best:
            longer = ratio(float(seconds[number]), float(seconds[best]))
            lines.append(f"{label} takes {longer:.2f} times as long: {at(number)}")
    return lines
