"""``fpmdask lab``: clusters of unequal workers that stay up."""

from __future__ import annotations

import click

from fpmdask.cli.output import json_option, print_columns, print_json


@click.group()
def lab() -> None:
    """Start and stop clusters of unequal workers on this machine."""


@lab.command()
@click.argument("definition", metavar="NAME")
@click.option("--name", help="Another name for the lab.")
@click.option(
    "--backend",
    type=click.Choice(["auto", "root", "duty-cycle"]),
    help="How workers are made unequal, in place of the definition's choice.",
)
@json_option
def up(definition: str, name: str | None, backend: str | None, as_json: bool) -> None:
    """Start the lab NAME, which stays until `fpmdask lab down`.

    NAME is a definition that comes with fpmdask (demo4, cliff4, hcl6, hcl16, paging, threads, and
    for programs out of core dc, io, hy1, hy2) or the path of a TOML file.
    """
    from fpmdask.lab import LabStatus
    from fpmdask.lab import up as start

    state = start(definition, name=name, backend=backend)
    if as_json:
        print_json(LabStatus.of(state).to_json())
        return
    for note in state.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"{state.name} is up ({state.backend}): {state.scheduler_address}")


@lab.command()
@click.argument("name", required=False)
@json_option
def down(name: str | None, as_json: bool) -> None:
    """Take the lab NAME down; without NAME all that stay, and the remains of crashed ones."""
    from fpmdask.lab import down as stop

    gone = [state.name for state in stop(name)]
    if as_json:
        print_json({"down": gone})
    else:
        click.echo(f"down: {', '.join(gone)}" if gone else "no lab was up")


@lab.command()
@json_option
def status(as_json: bool) -> None:
    """List this user's labs."""
    from fpmdask.lab import status as recorded

    labs = recorded()
    if as_json:
        print_json([status.to_json() for status in labs])
        return
    if not labs:
        click.echo("no lab is up; start one with `fpmdask lab up hcl6`")
    for status in labs:
        owner = f", ends with process {status.owner}" if status.owner else ""
        where = status.scheduler_address or "no scheduler yet"
        click.echo(f"{status.name}: {status.condition} ({status.backend}), {where}{owner}")
        if status.workers:
            print_columns(
                ("  worker", "pid", "cores", ""),
                [
                    (
                        f"  {worker.name}",
                        worker.pid,
                        "all" if worker.quota is None else f"{worker.quota:g}",
                        "" if worker.alive else "dead",
                    )
                    for worker in status.workers
                ],
            )
        for note in status.notes:
            click.echo(f"  note: {note}")
