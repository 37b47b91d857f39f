"""``fpmdask replay``: make a run's decisions again, offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fpmdask.cli.output import ANSWER_IS_NO, json_option, print_json
from fpmdask.cli.reading import read_run
from fpmdask.errors import FpmdaskError

if TYPE_CHECKING:
    from fpmdask.runtime.coordinator.replay import Contradiction, Difference, Verdict
    from fpmdask.runtime.report import Report

SHOWN = 5


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@json_option
@click.pass_context
def replay(ctx: click.Context, run: Path, as_json: bool) -> None:
    """Make the decisions of a logged run again and say where they would differ.

    RUN is what balancer.report.save() or `fpmdask demo --log` wrote. The exit code is 3 if a
    decision differs, or if the report does not say what the log's events lead to.
    """
    report = read_run(run)
    verdict = _verify(run, report)
    if as_json:
        print_json(
            {
                "run": report.run,
                "events": 0 if report.log is None else len(report.log["events"]),
                "rounds": len(report.rounds),
                "concluded": verdict.concluded,
                "differences": [difference.to_json() for difference in verdict.differences],
                "contradictions": [found.to_json() for found in verdict.contradictions],
            }
        )
    else:
        _tell(report, verdict)
    if verdict.differences or verdict.contradictions:
        ctx.exit(ANSWER_IS_NO)


def _verify(path: Path, report: Report) -> Verdict:
    """Replay a report; errors name its file."""
    from fpmdask.runtime.coordinator.replay import Verdict, verify

    if report.log is None:
        if report.rounds:
            raise FpmdaskError(
                f"{path} is damaged: the run measured, but its log is missing; save it again with "
                "balancer.report.save()"
            )
        return Verdict((), (), concluded=True)
    try:
        return verify(report)
    except FpmdaskError as error:
        raise type(error)(f"{path}: {error}") from error


def _tell(report: Report, verdict: Verdict) -> None:
    if report.log is None:
        click.echo(
            f"{report.run}: nothing was measured, its distribution was {report.reason}; nothing to "
            "replay."
        )
        return
    names = _names(report.log)
    title = f"{report.run}: {len(report.log['events'])} events in {len(report.rounds)} rounds"
    if verdict.differences:
        _tell_differences(title, verdict.differences, names)
    elif verdict.contradictions:
        click.echo(f"{title}, the same decisions, but the report says something else.")
    elif verdict.concluded:
        click.echo(f"{title}, the same decisions.")
    else:
        click.echo(f"{title}, the same decisions; the run and its log end before a conclusion.")
    for found in verdict.contradictions:
        _tell_contradiction(found, names)


def _tell_contradiction(found: Contradiction, names: Mapping[str, str]) -> None:
    def said(value: Any) -> str:
        if value is None:
            return "none, it ends before"
        return _shares(value, names) if isinstance(value, Mapping) else str(value)

    click.echo(f"\n{found.what}")
    click.echo(f"  report:  {said(found.reported)}")
    click.echo(f"  its log: {said(found.now)}")


def _tell_differences(
    title: str, differences: Sequence[Difference], names: Mapping[str, str]
) -> None:
    count = f"{len(differences)} decision{'s' * (len(differences) > 1)}"
    click.echo(f"{title}, {count} would differ.")
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
    return f"conclude: {_shares(decision.get('conclude') or {}, names)}"


def _shares(units: Mapping[str, int], names: Mapping[str, str]) -> str:
    return ", ".join(f"{names.get(worker, worker)} {n}" for worker, n in units.items())


def _names(log: Mapping[str, Any] | None) -> dict[str, str]:
    """Return address → name of all workers that a log mentions."""
    if log is None:
        return {}
    members = dict(log["header"]["members"])
    members |= {e["worker"]: e["member"] for e in log["events"] if e["event"] == "joined"}
    return {str(address): str(member["name"]) for address, member in members.items()}
