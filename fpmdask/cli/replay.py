"""``fpmdask replay``: make a run's decisions again, offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fpmdask.cli.output import ANSWER_IS_NO, json_option, print_json
from fpmdask.cli.reading import read_run

if TYPE_CHECKING:
    from fpmdask.coordinator.replay import Difference

SHOWN = 5


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@json_option
@click.pass_context
def replay(ctx: click.Context, run: Path, as_json: bool) -> None:
    """Make the decisions of a logged run again and say where they would differ.

    RUN is what balancer.report.save() or `fpmdask demo --log` wrote. The exit code is 3 if a
    decision differs.
    """
    from fpmdask.coordinator.replay import replay as again

    report = read_run(run)
    differences = () if report.log is None else again(report.log)
    events = 0 if report.log is None else len(report.log["events"])
    if as_json:
        print_json(
            {
                "run": report.run,
                "events": events,
                "rounds": len(report.rounds),
                "differences": [difference.to_json() for difference in differences],
            }
        )
    else:
        _tell(report.run, events, len(report.rounds), differences, _names(report.log))
    if differences:
        ctx.exit(ANSWER_IS_NO)


def _tell(
    run: str,
    events: int,
    rounds: int,
    differences: Sequence[Difference],
    names: Mapping[str, str],
) -> None:
    if not events:
        click.echo(f"{run}: nothing was measured, its distribution was given; nothing to replay.")
        return
    if not differences:
        click.echo(f"{run}: {events} events in {rounds} rounds, the same decisions.")
        return
    count = f"{len(differences)} decision{'s' * (len(differences) > 1)}"
    click.echo(f"{run}: {events} events in {rounds} rounds, {count} would differ.")
    for difference in differences[:SHOWN]:
        facts = ", ".join(
            f"{key} {names.get(str(value), value)}"
            for key, value in difference.event.items()
            if key not in ("event", "member")
        )
        click.echo(f"\nevent {difference.number}: {difference.event['event']} {facts}".rstrip())
        click.echo(f"  logged: {_said(difference.logged, names)}")
        click.echo(f"  now:    {_said(difference.now, names)}")
    if len(differences) > SHOWN:
        click.echo(f"\n… and {len(differences) - SHOWN} more (--json lists all).")
    if len(differences) > 1:
        click.echo("\nOnly the first one counts: later ones may be its consequences.")


def _said(decisions: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> str:
    """Return decisions in words."""
    if not decisions:
        return "wait"
    if "measure" in decisions[0]:
        tasks = (f"{names.get(d['measure'], d['measure'])} {d['units']}" for d in decisions)
        return f"measure round {decisions[0]['round']}: {', '.join(tasks)}"
    decision = decisions[0]
    if "refused" in decision:
        return f"refused: {decision['refused']}"
    if decision.get("failure"):
        return f"give up: {decision['failure']}"
    shares = (f"{names.get(w, w)} {n}" for w, n in (decision.get("conclude") or {}).items())
    return f"conclude: {', '.join(shares)}"


def _names(log: Mapping[str, Any] | None) -> dict[str, str]:
    """Return address → name of all workers that a log mentions."""
    if log is None:
        return {}
    members = dict(log["header"]["members"])
    members |= {e["worker"]: e["member"] for e in log["events"] if e["event"] == "joined"}
    return {str(address): str(member["name"]) for address, member in members.items()}
