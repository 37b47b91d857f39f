"""What applications refuse before they start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fpmdask.errors import MissingWorkersError, PartitionError
from fpmdask.runtime.coordinator.chunks import free_nbytes
from fpmdask.runtime.coordinator.context import RunContext


def check_room(context: RunContext, nbytes: float, what: str) -> None:
    """Refuse what does not fit into the memory that the workers have free.

    Parameters
    ----------
    nbytes
        That are needed.
    what
        Needs them, in the plural.

    Raises
    ------
    CoordinatorError
        If no worker, or not every named one, is connected.
    PartitionError
        With both numbers.
    """
    free = sum(free_nbytes(context, address) for address in context.members.candidates())
    if nbytes > free:
        raise PartitionError(
            f"{what} need {nbytes:.0f} bytes; the workers have room for {free:.0f} bytes; add "
            "workers or memory"
        )


def check_names(
    context: RunContext, given: Mapping[str, float] | None, workers: Iterable[str], what: str
) -> None:
    """Refuse names of workers that take no part and are to have something.

    Parameters
    ----------
    given
        Worker name → what it is given.
    workers
        Addresses of those that take part.
    what
        Where the names are from.

    Raises
    ------
    MissingWorkersError
        With these names, and why they take no part where that is known.
    """
    names = {context.name(worker) for worker in workers}
    if unknown := [name for name, value in (given or {}).items() if name not in names and value]:
        why = [
            f"{name} ({context.members.left_out.get(name, 'not connected')})" for name in unknown
        ]
        raise MissingWorkersError(
            f"{what} names {', '.join(why)}; workers that take part are {', '.join(sorted(names))}"
        )
