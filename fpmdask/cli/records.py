"""``fpmdask records``: files of 100-byte records, written and verified."""

from __future__ import annotations

from pathlib import Path

import click

from fpmdask.cli.output import ANSWER_IS_NO, json_option, print_json


def _hex(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return the number that a checksum in hex is."""
    try:
        return None if value is None else int(value, 16)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a hexadecimal number") from None


@click.group()
def records() -> None:
    """Write and verify files of 100-byte records with 10-byte keys.

    `Balancer.sort_records` sorts them.
    """


@records.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--records", "count", metavar="N", type=int, required=True, help="Records in all.")
@click.option("--files", metavar="N", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--kind",
    default="uniform",
    show_default=True,
    type=click.Choice(["uniform", "ascii", "skewed", "duplicates"]),
    help="What the keys are like.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@json_option
def write(folder: Path, count: int, files: int, kind: str, seed: int, as_json: bool) -> None:
    """Write files of random records into FOLDER, and say their checksum.

    The same options make the same files. Skewed: half of the keys begin with the same bytes.
    Duplicates: a thousand different keys.
    """
    from fpmdask.records import write_records

    sizes = [count * (n + 1) // files - count * n // files for n in range(files)]
    written = write_records(folder, sizes, kind=kind, seed=seed)
    if as_json:
        print_json(
            {
                "paths": list(written.paths),
                "records": written.records,
                "checksum": f"{written.checksum:x}",
            }
        )
        return
    click.echo(f"{written.records} records in {files} files, checksum {written.checksum:x}")


@records.command()
@click.argument("target")
@click.option("--records", "count", metavar="N", type=int, help="How many there should be.")
@click.option("--checksum", metavar="HEX", callback=_hex, help="What their checksum should be.")
@json_option
@click.pass_context
def verify(
    ctx: click.Context, target: str, count: int | None, checksum: int | None, as_json: bool
) -> None:
    """Read every record of the sorted parts in TARGET, a path or URL.

    Are they in order, and as many as the manifest says, with its checksum? The exit code is 3 if
    something is wrong.
    """
    from fpmdask.records import verify as examine

    found = examine(target, records=count, checksum=checksum)
    if as_json:
        print_json(found.to_json())
    else:
        click.echo(
            f"{found.records} records in {found.parts} parts, checksum {found.checksum:x}: "
            f"{'in order and complete' if found.ok else 'NOT right'}"
        )
        for problem in found.problems:
            click.echo(problem)
    if not found.ok:
        ctx.exit(ANSWER_IS_NO)
