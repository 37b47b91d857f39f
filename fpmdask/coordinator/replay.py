"""A run's decisions made again from its log, without a cluster (no I/O)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fpmdask.coordinator.instructions import Member
from fpmdask.coordinator.measuring import Measuring
from fpmdask.errors import MeasuringError, PartitionError

Decision = Mapping[str, Any]


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
    header, events = _parts(log)
    machine = _machine(header)
    differences = []
    for number, logged in enumerate(events, 1):
        event, before = _split(number, logged)
        now = _again(machine, number, event)
        if now != before:
            differences.append(Difference(number, event, before, now))
    return tuple(differences)


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
        members = {str(key): Member.from_json(data) for key, data in header["members"].items()}
        return Measuring(
            header["units"],
            members,
            epsilon=header["epsilon"],
            max_rounds=header["max_rounds"],
            scout=header.get("scout", 0),
            least_gain=header.get("least_gain", 0.0),
        )
    except PartitionError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
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
    except (AttributeError, KeyError, TypeError) as error:
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
            machine.answered(event["worker"], event["round"], seconds)
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
