"""``fpmdask models``: what a store of models has."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fpmdask.cli.output import json_option, print_columns, print_json
from fpmdask.errors import FpmdaskError

if TYPE_CHECKING:
    from fpmdask.runtime.known_models import Known
    from fpmdask.store import ModelStore

url_argument = click.argument("url")
kernel_option = click.option("--kernel", help="Only those of this kernel.")
worker_option = click.option("--worker", help="Only those of this worker.")


@click.group()
def models() -> None:
    """Look at stored models, or remove some.

    URL is what fpmdask.models-url has on the scheduler, or balancer.models.save() was given: a
    folder, or a URL that fsspec knows.
    """


@models.command(name="list")
@url_argument
@json_option
def list_(url: str, as_json: bool) -> None:
    """List the kernels of a store, with how many workers and points there are.

    Machines of MHETA's, of programs out of core, have no points.
    """
    from fpmdask.runtime.known_models import KnownModel, by_kernel

    rows = [
        (
            kernel,
            parameters,
            len(own),
            sum(one.model.units.size if isinstance(one, KnownModel) else 0 for one in own),
        )
        for (kernel, _, parameters), own in by_kernel(_read(url, None, None)).items()
    ]
    header = "kernel", "parameters", "workers", "points"
    if as_json:
        print_json([dict(zip(header, row, strict=True)) for row in rows])
    else:
        print_columns(header, rows)


@models.command()
@url_argument
@kernel_option
@worker_option
@json_option
def show(url: str, kernel: str | None, worker: str | None, as_json: bool) -> None:
    """Show each worker's model: its points, the range of its speed, its hardware.

    And what MHETA knows of it as a node: seconds per row, and those of its disk.
    """
    from fpmdask.runtime.known_models import KnownModel, as_text

    found = _read(url, kernel, worker)
    if as_json:
        print_json([asdict(one.facts if isinstance(one, KnownModel) else one) for one in found])
    elif found:
        click.echo(as_text(found))


@models.command()
@url_argument
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
@kernel_option
@worker_option
@json_option
def plot(url: str, target: Path, kernel: str | None, worker: str | None, as_json: bool) -> None:
    """Write a page with the speed functions to TARGET, an HTML file."""
    from fpmdask.runtime.known_models import KnownModel, as_html

    found = _read(url, kernel, worker)
    count = sum(isinstance(one, KnownModel) for one in found)
    page = f'<!DOCTYPE html><meta charset="utf-8"><title>fpmdask models</title>{as_html(found)}\n'
    target.write_text(page, encoding="utf-8")
    if as_json:
        print_json({"file": str(target), "models": count})
    else:
        click.echo(f"{count} models are drawn in {target}")


@models.command()
@url_argument
@kernel_option
@worker_option
@click.option("--all", "every", is_flag=True, help="All models of the store.")
@json_option
def forget(url: str, kernel: str | None, worker: str | None, every: bool, as_json: bool) -> None:
    """Remove models from a store. A scheduler that has loaded them keeps them until it ends."""
    if not (kernel or worker or every):
        raise click.UsageError("give --kernel, --worker, or --all")
    store = _store(url)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        count = store.forget(kernel, worker)
    for warning in told:
        click.echo(str(warning.message), err=True)
    if as_json:
        print_json({"forgotten": count})
    else:
        click.echo(f"{count} models are removed")


def _store(url: str) -> ModelStore:
    """Return the store at a URL."""
    from fpmdask.store import ModelStore

    if not url:
        raise click.UsageError("URL is empty; give a folder, . for this one")
    try:
        return ModelStore(url)
    except (ImportError, ValueError) as error:  # what fsspec says of protocols
        raise FpmdaskError(f"{url}: {error}") from error


def _read(url: str, kernel: str | None, worker: str | None) -> list[Known]:
    """Return some models and machines; on stderr it tells what cannot be read, and if none is."""
    from fpmdask.store.document import FOLDER

    found, problems = _store(url).known(most_age_seconds=None)
    for problem in problems:
        click.echo(f"left alone: {problem}", err=True)
    named = [one for one in found if kernel in (None, one.kernel) and worker in (None, one.worker)]
    if not named:
        given = {"kernel": kernel, "worker": worker}
        only = "".join(f" of the {what} {name}" for what, name in given.items() if name)
        click.echo(f"no models{only} in {url}; a store has them in its folder {FOLDER}", err=True)
    return named
