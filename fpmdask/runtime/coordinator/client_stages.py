"""Runs that hold workers while their client does what only it can do; they do nothing themselves.

On the scheduler. An application whose stages are tasks of the client (of collections that only it
has) names `run`, and its client calls `fpmdask.runtime.client.proxy.leased`: no other run measures
or computes on these workers meanwhile, and stages wait for those that do.
"""

from __future__ import annotations

from typing import Any

from fpmdask.runtime.coordinator.context import RunContext


async def run(context: RunContext) -> dict[str, Any]:
    """Hold the wanted workers until the client is done; the value is its answer."""
    await context.hold(context.candidates())
    return await context.ask_client("work")
