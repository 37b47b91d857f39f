"""What ``dask worker --preload fpmdask.preload`` and ``dask scheduler --preload …`` load.

On a worker: lets BLAS use the worker's threads and no more, offers the resource ``fpm``, and pins
the process to CPUs where asked. On a scheduler: installs the coordinator, so that the first client
need not. Neither is needed for `fpmdask.Balancer` to work; both make a deployment deliberate.

Options follow the module's name::

    dask worker tcp://scheduler:8786 --preload fpmdask.preload --affinity 0-3,8 --slots 2

A worker whose options cannot be kept does not join: ``dask worker`` ends with the reason.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import click
from distributed import Scheduler, Worker
from distributed.diagnostics.plugin import WorkerPlugin
from threadpoolctl import threadpool_limits

from fpmdask import config
from fpmdask.errors import CoordinatorError
from fpmdask.runtime.coordinator.plugin import CoordinatorPlugin
from fpmdask.runtime.dask_private import add_plugin_before_start, offer_resource_before_start

THREADS = Path("/proc/self/task")


def parse_cpus(text: str, allowed: Collection[int]) -> set[int]:
    """Return the CPUs that a list such as ``"0-3,8"`` names.

    Parameters
    ----------
    text : str
        CPUs and ranges of CPUs.
    allowed : collection of int
        The CPUs that this process may use.

    Raises
    ------
    click.BadParameter
        If it is not such a list, or names a CPU that is not allowed.

    Examples
    --------
    >>> sorted(parse_cpus("0-3,8", allowed=range(16)))
    [0, 1, 2, 3, 8]
    """
    cpus: set[int] = set()
    usable = ", ".join(map(str, sorted(allowed)))
    for part in text.split(","):
        found = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
        if found is None:
            raise click.BadParameter(f"found {text!r}; give CPUs such as 0-3,8, of {usable}")
        low, high = int(found[1]), int(found[2] or found[1])
        if low > high:
            raise click.BadParameter(
                f"the range {part.strip()} ends before it begins; give {high}-{low}, of {usable}"
            )
        if high > max(allowed) or not {*range(low, high + 1)} <= {*allowed}:
            raise click.BadParameter(f"found {text!r}; this process may use the CPUs {usable}")
        cpus.update(range(low, high + 1))
    return cpus


def pin(cpus: Collection[int], listing: Path = THREADS) -> None:
    """Keep all threads of this process to CPUs; those that they start later inherit it.

    `listing` is the folder that has an entry per thread.
    """
    pinned: set[int] = set()
    while new := _threads(listing) - pinned:
        for thread in new:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(thread, cpus)
        pinned |= new


def _threads(listing: Path) -> set[int]:
    """Return the threads of this process; where /proc is missing only the calling one, 0."""
    return {int(thread.name) for thread in listing.iterdir()} if listing.is_dir() else {0}


class Setup(click.Command):
    """Options that are wrong reach `dask_setup`, which can keep the worker from joining.

    Dask's command line parses the options with `parse_args` and ends on an error. Options from the
    configuration are parsed by `make_context` alone, when the worker starts, where Dask would log
    an error and go on.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the options; keep the error if they are wrong."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            context = click.Context(self, parent=parent, info_name=info_name)
            context.params = {"affinity": None, "slots": None, "wrong": error.format_message()}
            return context


class RefuseToStart(WorkerPlugin):
    """Fails when the worker sets its plugins up: it closes then, before it registers.

    Dask only logs what `dask_setup` raises.
    """

    name = "fpmdask.preload"

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def setup(self, worker: Worker) -> None:
        """Raise the reason."""
        raise CoordinatorError(self.reason)


def _check_affinity(context: Any, parameter: Any, value: str | None) -> set[int] | None:
    return None if value is None else parse_cpus(value, os.sched_getaffinity(0))


@click.command(cls=Setup)
@click.option("--affinity", callback=_check_affinity, help="CPUs of a worker, such as 0-3,8.")
@click.option("--slots", type=click.IntRange(min=1), help="Amount of the worker's resource fpm.")
async def dask_setup(
    service: Any, affinity: set[int] | None, slots: int | None, wrong: str | None = None
) -> None:
    """Prepare a worker or a scheduler."""
    if isinstance(service, Scheduler):
        if wrong is not None:
            raise CoordinatorError(_told(wrong))
        await _prepare_scheduler(service, int(config.setting("slots", slots)))
    elif isinstance(service, Worker):
        try:
            if wrong is not None:
                raise ValueError(wrong)
            _prepare_worker(service, affinity, int(config.setting("slots", slots)))
        except (OSError, TypeError, ValueError) as error:
            add_plugin_before_start(service, RefuseToStart(_told(error)))


async def _prepare_scheduler(scheduler: Scheduler, slots: int) -> None:
    from fpmdask.apps import APPS

    plugin = CoordinatorPlugin(APPS, slots)
    await scheduler.register_scheduler_plugin(plugin, name=plugin.name, idempotent=True)


def _prepare_worker(worker: Worker, affinity: set[int] | None, slots: int) -> None:
    threadpool_limits(limits=worker.state.nthreads, user_api="blas")
    offer_resource_before_start(worker, "fpm", slots)
    if affinity is not None:
        pin(affinity)


def _told(problem: object) -> str:
    return f"the options of fpmdask.preload cannot be kept: {problem}; correct them and start again"
