"""What ``dask worker --preload fpmdask.preload`` and ``dask scheduler --preload …`` load.

On a worker: pins the process to CPUs where asked, lets BLAS use the worker's threads and no more,
and offers the resource ``fpm``. On a scheduler: installs the coordinator, so that the first client
need not. Neither is needed for `fpmdask.Balancer` to work; both make a deployment deliberate.

Options follow the module's name::

    dask worker tcp://scheduler:8786 --preload fpmdask.preload --affinity 0-3,8 --slots 2
"""

from __future__ import annotations

import os
from typing import Any

import click
from distributed import Scheduler, Worker
from threadpoolctl import threadpool_limits

from fpmdask.coordinator import config
from fpmdask.coordinator.plugin import CoordinatorPlugin


def parse_cpus(text: str) -> set[int]:
    """Return the CPUs that a list such as ``"0-3,8"`` names.

    Raises
    ------
    click.BadParameter
        If it is not such a list.

    Examples
    --------
    >>> sorted(parse_cpus("0-3,8"))
    [0, 1, 2, 3, 8]
    """
    cpus: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise click.BadParameter(f"found {text!r}; give CPUs such as 0-3,8")
        cpus.update(range(int(low), int(high if dash else low) + 1))
    return cpus


def _check_affinity(context: Any, parameter: Any, value: str | None) -> set[int] | None:
    return None if value is None else parse_cpus(value)


@click.command()
@click.option("--affinity", callback=_check_affinity, help="CPUs of a worker, such as 0-3,8.")
@click.option("--slots", type=click.IntRange(min=1), help="Amount of the worker's resource fpm.")
async def dask_setup(service: Any, affinity: set[int] | None, slots: int | None) -> None:
    """Prepare a worker or a scheduler."""
    slots = int(config.setting("slots", slots))
    if isinstance(service, Scheduler):
        from fpmdask.balancer import APPS, KERNELS

        plugin = CoordinatorPlugin(APPS, KERNELS, slots, float(config.setting("spill-target")))
        await service.register_scheduler_plugin(plugin, name=plugin.name, idempotent=True)
    elif isinstance(service, Worker):
        if affinity is not None:
            os.sched_setaffinity(0, affinity)
        threadpool_limits(limits=service.state.nthreads, user_api="blas")
        # Not yet registered: what is set here goes to the scheduler with the registration.
        service.state.total_resources["fpm"] = slots
        service.state.available_resources["fpm"] = slots
