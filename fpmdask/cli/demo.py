"""``fpmdask demo``: the whole of it on this machine, in about a minute."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fpmdask.cli.output import json_option, print_json
from fpmdask.errors import FpmdaskError

if TYPE_CHECKING:
    from fpmdask.cli.comparison import Comparison
    from fpmdask.lab import Lab
    from fpmdask.runtime.report import Report

# What workers import before they are held back.
PROGRAM = ("fpmdask.cli.out_of_core", "fpmdask.runtime.worker.block_file")
PICTURE = Path("fpmdask-demo.png")
SUFFIXES = (".png", ".svg", ".pdf")
WRITTEN = click.Path(dir_okay=False, readable=False, writable=True, path_type=Path)


@click.command()
@click.option(
    "--rows", type=click.IntRange(min=16), default=65536, show_default=True, help="Of 2 KB each."
)
@click.option(
    "--passes",
    type=click.IntRange(min=1),
    default=80,
    show_default=True,
    help="How often all rows are replaced by their product with a matrix.",
)
@click.option(
    "--definition",
    default="cliff4",
    show_default=True,
    help="The workers: a lab's definition, by name or path.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of rows and matrix.")
@click.option(
    "--epsilon",
    type=float,
    default=0.25,
    show_default=True,
    help="Imbalance that DFPA is to reach.",
)
@click.option(
    "--picture",
    type=WRITTEN,
    default=PICTURE,
    show_default=True,
    help="Where the picture goes (.png, .svg or .pdf).",
)
@click.option("--no-picture", is_flag=True, help="Draw none.")
@click.option(
    "--log",
    type=WRITTEN,
    help="Where the run's log goes, for `fpmdask replay`.",
)
@click.option(
    "--dashboard",
    is_flag=True,
    help="Keep the workers, and the page fpmdask of Dask's dashboard, until Ctrl-C.",
)
@json_option
def demo(
    rows: int,
    passes: int,
    definition: str,
    seed: int,
    epsilon: float,
    picture: Path,
    no_picture: bool,
    log: Path | None,
    dashboard: bool,
    as_json: bool,
) -> None:
    """Balance a program on unequal workers, here and now.

    Starts four workers with 0.60 to 0.15 of a core (no root needed); one has little memory, and
    keeps what does not fit on disk. Multiplies rows by a matrix again and again, first in equal
    shares and then in the shares that DFPA finds, checks the results against NumPy, and draws what
    was found out about the workers.
    """
    from fpmdask.partition.settings import check_epsilon

    check_epsilon(epsilon)
    target = None if no_picture else picture
    _check_output(target, log, as_json, dashboard)
    lab = _lab(definition, rows, dashboard)
    result, report = _run(lab, rows, passes, seed, epsilon, as_json, dashboard)
    files = {
        name: str(path.resolve()) for name, path in (("picture", target), ("log", log)) if path
    }
    # The result first, so that a full disk does not take it away.
    _show(result, files, as_json)
    if log is not None:
        report.save(log)
    if target is not None:
        _draw(target, result, report)
    if not as_json:
        from fpmdask.cli.showing import show_files

        show_files(files)


def _show(result: Comparison, files: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        print_json({**result.to_json(), **files})
        return
    from fpmdask.cli.showing import show_result

    show_result(result)


def _check_output(picture: Path | None, log: Path | None, as_json: bool, dashboard: bool) -> None:
    """Refuse at once what could not be shown or written at the end."""
    from fpmdask.picture import require

    require(*(["rich"] if not as_json else []), *(["matplotlib"] if picture else []))
    if dashboard:
        require("bokeh", extra="dashboard")
    if picture is not None and picture.suffix not in SUFFIXES:
        raise FpmdaskError(f"cannot draw {picture}; its name must end in {', '.join(SUFFIXES)}")
    for path in (picture, log):
        _check_folder(path)


def _lab(definition: str, rows: int, dashboard: bool) -> Lab:
    """Return the lab, not yet up; refuse more rows than the memory suffices for."""
    import psutil

    from fpmdask.cli.comparison import most_rows
    from fpmdask.lab import Lab

    found = Lab.from_toml(definition, name=f"demo-{os.getpid()}").definition
    imports = (*found.imports, *PROGRAM)
    lab = Lab(replace(found, imports=imports, dashboard=dashboard or found.dashboard))
    available = psutil.virtual_memory().available
    most = most_rows(available)
    if rows > most:
        raise FpmdaskError(
            f"rows is {rows}; the {available / 1e9:.1f} GB of memory that are available suffice "
            f"for --rows {most}: give less, or end other programs"
        )
    return lab


def _run(
    lab: Lab,
    rows: int,
    passes: int,
    seed: int,
    epsilon: float,
    quiet: bool,
    dashboard: bool,
) -> tuple[Comparison, Report]:
    from fpmdask.cli.comparison import compare

    hold = _until_interrupted if dashboard else None
    if quiet:
        told = _told_on_stderr
        return compare(lab, rows, passes, seed=seed, epsilon=epsilon, tell=told, hold=hold)
    from fpmdask.cli.showing import Show

    with Show(rows, passes) as show:
        return compare(lab, rows, passes, seed=seed, epsilon=epsilon, tell=show.tell, hold=hold)


def _until_interrupted() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()


def _told_on_stderr(event: Mapping[str, Any]) -> None:
    """Tell where the dashboard is, beside the JSON; nothing else."""
    if "/fpmdask" in str(event.get("what", "")):
        click.echo(event["what"], err=True)


def _check_folder(path: Path | None) -> None:
    """Refuse a file whose folder is missing or takes none."""
    if path is None:
        return
    folder = path.resolve().parent
    if not folder.is_dir():
        raise FpmdaskError(f"no folder {folder}; make it, or give another path")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FpmdaskError(
            f"nothing can be written to {folder} ({error.strerror}); give another path"
        ) from error


def _draw(path: Path, result: Comparison, report: Report) -> None:
    from fpmdask.cli.comparison import operations_per_row
    from fpmdask.picture import figure

    workers = result.workers
    drawn = figure(
        report,
        even={one.name: one.even_seconds for one in workers},
        balanced={one.name: one.balanced_seconds for one in workers},
        order=[one.name for one in workers],
        unit="rows",
        operations_per_unit=operations_per_row(),
        fits={one.name: one.memory_rows for one in workers if one.memory_rows < one.even_rows},
        title=f"{result.passes} passes over {result.rows} rows on {len(workers)} unequal workers: "
        f"{result.even_seconds:.1f} s split evenly, {result.balanced_seconds:.1f} s balanced",
    )
    drawn.savefig(path)
