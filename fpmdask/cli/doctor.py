"""``fpmdask doctor``: what this machine allows a lab to do."""

from __future__ import annotations

import click

from fpmdask.cli.output import ANSWER_IS_NO, json_option, print_columns, print_json


@click.command()
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Say what this machine allows a lab to do, and how to get the rest.

    The exit code is 3 if something is missing; what needs it is named there, the demo runs without.
    """
    from fpmdask.lab import doctor as examine

    checks = examine()
    missing = [check for check in checks if not check.ok]
    if as_json:
        print_json([check.to_json() for check in checks])
    else:
        print_columns(
            ("", "thing", "found"),
            [("ok" if check.ok else "--", check.name, check.found) for check in checks],
        )
        for check in missing:
            click.echo(f"\n{check.name}: {check.cure or 'nothing can be done about it here'}")
    if missing:
        ctx.exit(ANSWER_IS_NO)
