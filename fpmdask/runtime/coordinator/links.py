"""What a byte costs on the way to and from each worker, measured once per start of it."""

from __future__ import annotations

import asyncio
import math
from itertools import cycle, islice
from typing import TYPE_CHECKING

from fpmdask.runtime.links import Link, slow_links
from fpmdask.runtime.protocol import PROBE

if TYPE_CHECKING:
    from fpmdask.runtime.coordinator.context import RunContext

# Every worker receives a probe from so many others, one after the other: where no more than two
# links are slow, one of them was not on a way between two fast ones.
TURNS = 3
# What looks slow then is probed so often more: a worker whose CPU was busy elsewhere is not slow.
CONFIRMATIONS = 3


async def measured_links(context: RunContext) -> dict[str, Link]:
    """Return the links of the run's workers, by address; those without channels are left out.

    Workers receive in a ring, all at once, so that each one sends to one at a time; what is slow
    with every partner, and again when little else is sent, is slow itself. Measured where a worker
    has started since the last time.
    """
    known = context.coordinator.known_workers.links
    workers = {a: w for a, w in context.workers.items() if a in context.members.channels}
    if len(workers) > 1 and not all(identity in known for identity in workers.values()):
        found = await _measured(context, list(workers))
        there = found.keys() & context.scheduler.workers.keys()  # those of others stayed for ever
        known |= {workers[address]: found[address] for address in there}
    return {address: known[w] for address, w in workers.items() if w in known}


async def _measured(context: RunContext, ring: list[str]) -> dict[str, Link]:
    """Return the links of those that answer."""
    receiving = dict.fromkeys(ring, math.inf)
    sending = dict.fromkeys(ring, math.inf)

    async def turn(distance: int, concerned: set[str]) -> None:
        ways = ((to, ring[(at + distance) % len(ring)]) for at, to in enumerate(ring))
        pairs = [way for way in ways if concerned.intersection(way)]
        found = await asyncio.gather(*(_probe(context, *pair) for pair in pairs))
        for (to, peer), seconds in zip(pairs, found, strict=True):
            receiving[to] = min(receiving[to], seconds)
            sending[peer] = min(sending[peer], seconds)

    def links() -> dict[str, Link]:
        found = {worker: Link(receiving[worker], sending[worker]) for worker in ring}
        return {w: f for w, f in found.items() if math.isfinite(f.receiving + f.sending)}

    distances = range(1, min(TURNS, len(ring) - 1) + 1)
    for distance in distances:
        await turn(distance, set(ring))
    for distance in islice(cycle(distances), CONFIRMATIONS):
        if slow := slow_links(links()):
            await turn(distance, slow)
    return links()


async def _probe(context: RunContext, to: str, peer: str) -> float:
    """Return seconds per byte from `peer` to the worker `to`, inf where nothing came."""
    channel = context.members.channels.get(peer)
    if channel is None:
        return math.inf
    try:
        async with asyncio.timeout(context.tuning.runtime.link_probe_seconds):
            probe = await PROBE.ask(
                context.scheduler.rpc(to), run=context.run, peer=peer, channel=channel
            )
    except OSError:  # TimeoutError is one
        return math.inf
    return math.inf if probe.seconds_per_byte is None else probe.seconds_per_byte
