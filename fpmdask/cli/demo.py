"""``fpmdask demo``: the whole of it on this machine, in under a minute."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fpmdask.cli.output import json_option, print_json
from fpmdask.errors import FpmdaskError

if TYPE_CHECKING:
    from fpmdask.cli.comparison import Comparison, Products

PICTURE = Path("fpmdask-demo.png")
SUFFIXES = (".png", ".svg", ".pdf")


@click.command()
@click.option(
    "--n", type=click.IntRange(min=16), default=4096, show_default=True, help="Rows and columns."
)
@click.option(
    "--definition",
    default="demo4",
    show_default=True,
    help="The workers: a lab's definition, by name or path.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the matrices.")
@click.option("--epsilon", type=float, help="Imbalance to reach  [default: as configured, 0.1]")
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    default=PICTURE,
    show_default=True,
    help="Where the picture goes (.png, .svg or .pdf).",
)
@click.option("--no-picture", is_flag=True, help="Draw none.")
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the run's log goes, for `fpmdask replay`.",
)
@json_option
def demo(
    n: int,
    definition: str,
    seed: int,
    epsilon: float | None,
    picture: Path,
    no_picture: bool,
    log: Path | None,
    as_json: bool,
) -> None:
    """Balance a matrix product on unequal workers, here and now.

    Starts four workers with 0.60 to 0.15 of a core (no root needed), multiplies two random
    matrices first in equal shares and then in the shares that DFPA finds, checks the product
    against NumPy, and draws what was found out about the workers.
    """
    from fpmdask.partition.settings import check_epsilon
    from fpmdask.picture import require

    if epsilon is not None:
        check_epsilon(epsilon)
    target = None if no_picture else picture
    require(*(["rich"] if not as_json else []), *(["matplotlib"] if target else []))
    if target is not None and target.suffix not in SUFFIXES:
        raise FpmdaskError(f"cannot draw {target}; its name must end in {', '.join(SUFFIXES)}")
    for path in (target, log):
        _check_folder(path)
    result, products = _run(definition, n, seed, epsilon, as_json)
    if log is not None:
        products.balanced.save(log)
    if target is not None:
        _draw(target, result, products)
    files = {
        name: str(path.resolve()) for name, path in (("picture", target), ("log", log)) if path
    }
    if as_json:
        print_json({**result.to_json(), **files})
        return
    from fpmdask.cli.showing import show_result

    show_result(result, files)


def _run(
    definition: str, n: int, seed: int, epsilon: float | None, quiet: bool
) -> tuple[Comparison, Products]:
    from fpmdask.cli.comparison import compare

    if quiet:
        return compare(definition, n, seed=seed, epsilon=epsilon, tell=_ignore)
    from fpmdask.cli.showing import Show

    with Show(n) as show:
        return compare(definition, n, seed=seed, epsilon=epsilon, tell=show.tell)


def _ignore(event: Mapping[str, Any]) -> None:
    """Tell nobody."""


def _check_folder(path: Path | None) -> None:
    """Refuse at once what could not be written at the end."""
    if path is not None and not path.resolve().parent.is_dir():
        raise FpmdaskError(f"no folder {path.resolve().parent}; make it, or give another path")


def _draw(path: Path, result: Comparison, products: Products) -> None:
    from fpmdask.cli.comparison import operations_per_row
    from fpmdask.picture import figure

    drawn = figure(
        products.balanced,
        even=products.even,
        order=[worker.name for worker in result.workers],
        unit="rows",
        operations_per_unit=operations_per_row(result.n),
        title=f"{result.n} × {result.n} matrices on {len(result.workers)} unequal workers: "
        f"{result.even_seconds:.1f} s split evenly, {result.balanced_seconds:.1f} s balanced",
    )
    drawn.savefig(path)
