"""A run's decisions made again from its log, without a cluster (no I/O)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fpmdask.errors import MeasuringError, PartitionError
from fpmdask.runtime.coordinator.instructions import Member, Result
from fpmdask.runtime.coordinator.measuring import Measuring
from fpmdask.runtime.report import TOO_SHORT, Report

Decision = Mapping[str, Any]


def _whole(least: int) -> tuple[str, Callable[[Any], bool]]:
    return (
        f"a whole number of at least {least}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least,
    )


def _number(wanted: str, fits: Callable[[float], bool]) -> tuple[str, Callable[[Any], bool]]:
    return (
        wanted,
        lambda value: (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(value)
            and fits(value)
        ),
    )


# What a header must hold.
HEADER: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "units": _whole(1),
    "epsilon": _number("a number > 0", lambda value: value > 0),
    "max_rounds": _whole(1),
    "scout": _whole(0),
    "least_gain": _number("a number of at least 0", lambda value: value >= 0),
    "members": ("workers by address", lambda value: isinstance(value, Mapping)),
}


@dataclass(frozen=True)
class Difference:
    """An event after which other decisions are made now than were logged.

    Parameters
    ----------
    number : int
        Place of the event in the log, from 1.
    event : dict
        The event, without what was decided.
    logged, now : tuple of dict
        Decisions as logged and as made now: ``{"measure": worker, "units": …, "round": …}`` or
        ``{"conclude": distribution, "failure": …}``; ``{"refused": why}`` for an event that does
        not fit the decisions made now.
    """

    number: int
    event: Mapping[str, Any]
    logged: tuple[Decision, ...]
    now: tuple[Decision, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        return asdict(self)


@dataclass(frozen=True)
class Contradiction:
    """Something that a report says otherwise than its own log's events lead to.

    Parameters
    ----------
    what : {"conclusion", "rounds", "distribution", "proposal", "reason"}
        What it is about; ``"conclusion"`` where only one of both has come to one.
    reported, now
        As the report says, and by the events: units by worker address, a count or a text; None
        for no conclusion.
    """

    what: str
    reported: Any
    now: Any

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        return asdict(self)


@dataclass(frozen=True)
class Verdict:
    """What replaying a report has shown.

    Parameters
    ----------
    differences : tuple of Difference
        Events after which other decisions are made now.
    contradictions : tuple of Contradiction
        Where the report does not say what the events lead to.
    concluded : bool
        Whether the events lead to a conclusion; those of a cancelled run do not.
    """

    differences: tuple[Difference, ...]
    contradictions: tuple[Contradiction, ...]
    concluded: bool


def verify(report: Report) -> Verdict:
    """Replay a report's log and compare what it leads to with what the report says.

    Parameters
    ----------
    report : Report
        Of a run that measured.

    Raises
    ------
    MeasuringError, PartitionError
        As for `replay`.
    """
    differences, machine = _run(report.log)
    return Verdict(differences, tuple(_contradictions(report, machine)), machine.concluded)


def _contradictions(report: Report, machine: Measuring) -> list[Contradiction]:
    reported, proposed = (
        dict(zip(report.addresses, units.tolist(), strict=False))
        for units in (report.distribution, report.proposal)
    )
    found: list[tuple[str, Any, Any]] = [("rounds", len(report.rounds), len(machine.rounds))]
    if machine.result is None:
        ending = machine.failure  # None if the log ends before
        found += [("conclusion", reported, ending)] if reported else []
    elif not reported:
        found += [("conclusion", None, dict(machine.result.distribution))]
    else:
        found += _of_results(report, reported, proposed, machine.result)
    return [Contradiction(what, said, now) for what, said, now in found if said != now]


def _of_results(
    report: Report, reported: Mapping[str, int], proposed: Mapping[str, int], result: Result
) -> list[tuple[str, Any, Any]]:
    if report.reason == TOO_SHORT:
        return []  # shares that do not follow from what was measured
    best, proposal = dict(result.distribution), dict(result.proposal)
    # The shares of a product are the proposal; reports without one are older.
    shares = reported if reported in (best, proposal) else best
    old = proposed == reported == best
    # what an application calls the end of as many rounds as it wants
    enough = report.reason == "measured" and result.reason == "max_rounds"
    return [
        ("distribution", reported, shares),
        ("proposal", proposed, proposed if old else proposal),
        ("reason", report.reason, report.reason if enough else result.reason),
    ]


def replay(log: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Give the logged events to a new `Measuring` and say where it decides otherwise.

    Parameters
    ----------
    log : mapping
        `Report.log` of a run that measured: ``{"header": …, "events": …}``.

    Returns
    -------
    tuple of Difference
        In the log's order; empty if all decisions are the same.

    Raises
    ------
    MeasuringError
        If the log is incomplete or holds events that no measurement has.
    PartitionError
        If it holds models of another version, or settings that no partitioner accepts.

    Notes
    -----
    The events that follow a difference were answers to what was decided then, not to what is
    decided now: the first difference counts, later ones may be its consequences. Decisions are
    integers and compare exactly; libraries of another version may move a share by one unit.

    Examples
    --------
    >>> run = Measuring(10, {"a": Member("a")}, epsilon=0.1, max_rounds=5)
    >>> (task,) = run.start()
    >>> _ = run.answered("a", task.round, seconds=2.0)
    >>> replay({"header": run.header, "events": run.log})
    ()
    """
    return _run(log)[0]


def _run(log: Any) -> tuple[tuple[Difference, ...], Measuring]:
    """Feed all events of a log to a new `Measuring`."""
    header, events = _parts(log)
    machine = _machine(header)
    differences = []
    for number, logged in enumerate(events, 1):
        event, before = _split(number, logged)
        now = _again(machine, number, event)
        if now != before:
            differences.append(Difference(number, event, before, now))
    return tuple(differences), machine


def _parts(log: Any) -> tuple[Mapping[str, Any], Sequence[Any]]:
    header = log.get("header") if isinstance(log, Mapping) else None
    events = log.get("events") if isinstance(log, Mapping) else None
    if not isinstance(header, Mapping) or not isinstance(events, list | tuple) or not events:
        raise MeasuringError(
            "the log has no header or no events; use one that `balancer.report.save()` wrote after "
            "a run that measured"
        )
    return header, events


def _machine(header: Mapping[str, Any]) -> Measuring:
    try:
        for key, (wanted, fits) in HEADER.items():
            if not fits(header[key]):
                raise ValueError(f"{key} is {header[key]!r}, not {wanted}")
        members = {str(key): Member.from_json(data) for key, data in header["members"].items()}
        return Measuring(
            header["units"],
            members,
            epsilon=header["epsilon"],
            max_rounds=header["max_rounds"],
            scout=header["scout"],
            least_gain=header["least_gain"],
            thorough=header.get("thorough") is True,  # this and repeats are missing in older logs
            repeats=header.get("repeats", 0),
        )
    except PartitionError:
        raise
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damaged("the header", error) from error


def _split(number: int, logged: Any) -> tuple[dict[str, Any], tuple[Decision, ...]]:
    try:
        event = dict(logged)
        return event, tuple(dict(decision) for decision in event.pop("decided"))
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(f"event {number}", error) from error


def _again(machine: Measuring, number: int, event: Mapping[str, Any]) -> tuple[Decision, ...]:
    """Feed one event; return what is decided now."""
    logged = len(machine.log)
    try:
        _feed(machine, event)
    except MeasuringError as error:
        return ({"refused": str(error)},)
    except PartitionError:
        raise
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damaged(f"event {number}", error) from error
    if len(machine.log) == logged:
        return ({"refused": "it comes after the end, or is about a worker that is not there"},)
    return tuple(machine.log[-1]["decided"])


def _feed(machine: Measuring, event: Mapping[str, Any]) -> None:
    match event.get("event"):
        case "start":
            machine.start()
        case "answered":
            seconds = event["seconds"]
            # JSON has no infinity
            seconds = math.inf if seconds == "inf" else seconds
            half_width = event.get("half_width")
            machine.answered(event["worker"], event["round"], seconds, half_width)
        case "failed":
            machine.failed(event["worker"], event["round"], event["reason"])
        case "overdue":
            machine.overdue(event["worker"], event["round"], event["reason"])
        case "left":
            machine.left(event["worker"])
        case "joined":
            machine.joined(event["worker"], Member.from_json(event["member"]))
        case other:
            raise TypeError(f"there is no event {other!r}")


def _damaged(where: str, error: Exception) -> MeasuringError:
    found = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
    return MeasuringError(f"{where} of the log cannot be replayed ({found}): the file is damaged")
