"""``fpmdask partition``: share units out by models, offline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fpmdask.cli.output import json_option, print_columns, print_json
from fpmdask.cli.reading import read_models
from fpmdask.errors import PartitionError

if TYPE_CHECKING:
    from fpmdask.models import Model


def _units(ctx: click.Context, param: click.Parameter, value: str) -> int | float:
    """Return a whole number, also written 1e9; the partitioner says whether it can be used."""
    try:
        return int(value)
    except ValueError:
        try:
            return float(value)
        except ValueError:
            raise click.BadParameter(
                f"{value!r} is not a number, for example 1000 or 1e9"
            ) from None


def _limits(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> dict[str, float]:
    """Return worker name → limit from NAME=UNITS."""
    limits: dict[str, float] = {}
    for text in value:
        worker, _, units = text.rpartition("=")
        try:
            limit = float(units)
        except ValueError:
            worker = ""
        if not worker:
            raise click.BadParameter(f"{text!r} is not NAME=UNITS, for example alpha=500")
        if worker in limits:
            raise click.BadParameter(f"{worker} has two limits; give one per worker")
        limits[worker] = limit
    return limits


@click.command()
@click.argument("models", type=click.Path(path_type=Path))
@click.option(
    "--units",
    metavar="N",
    callback=_units,
    required=True,
    help="Units to share out, for example 1e9.",
)
@click.option(
    "--limit",
    "--limits",
    "limits",
    metavar="NAME=UNITS",
    callback=_limits,
    multiple=True,
    help="Most units that a worker may get; once per worker.",
)
@json_option
def partition(models: Path, units: int | float, limits: dict[str, float], as_json: bool) -> None:
    """Share units out by stored models, offline.

    MODELS is a JSON object of worker name to model (what model.to_json() returns), or the log of a
    run, whose models are used then.
    """
    from fpmdask.partition.validate import check_units

    known = read_models(models)
    units = check_units(units)
    try:
        answer = share_out(known, units, limits)
    except PartitionError as error:
        raise PartitionError(f"{models}: {error}") from error
    if as_json:
        print_json(answer)
        return
    shares, seconds = answer["distribution"], answer["seconds"]
    print_columns(
        ("worker", "units", "seconds", "units/s"),
        [
            (name, share, seconds[name], share / seconds[name] if share else 0.0)
            for name, share in shares.items()
        ],
    )
    click.echo(
        f"{answer['units']} units in {answer['makespan']:.4g} s, "
        f"imbalance {answer['imbalance']:.3g}"
    )


def share_out(
    models: Mapping[str, Model], units: int | float, limits: Mapping[str, float]
) -> dict[str, Any]:
    """Return the distribution that lets all finish together, and what the models predict."""
    from fpmdask.models import TabulatedModel
    from fpmdask.partition import exact, geometric, imbalance

    if unknown := sorted(limits.keys() - models.keys()):
        raise PartitionError(
            f"no model of {', '.join(unknown)}; limits are for {', '.join(models)}"
        )
    for name, limit in limits.items():
        if not limit >= 0:
            raise PartitionError(f"the limit of {name} is {limit}; give a number of at least 0")
    bounds = [limits.get(name, math.inf) for name in models]
    tables = [m.seconds for m in models.values() if isinstance(m, TabulatedModel)]
    if len(tables) == len(models):  # their times may decrease, which only `exact` can use
        found = exact(units, tables, bounds)
    else:
        found = geometric(units, list(models.values()), bounds)
    shares = found.tolist()
    seconds = [
        float(model.time(share)) if share else 0.0
        for model, share in zip(models.values(), shares, strict=True)
    ]
    return {
        "units": sum(shares),
        "distribution": dict(zip(models, shares, strict=True)),
        "seconds": dict(zip(models, seconds, strict=True)),
        "makespan": max(seconds),
        "imbalance": float(imbalance(seconds, shares, bounds)),
    }
