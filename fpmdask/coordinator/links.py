"""What a byte costs on the way to and from each worker, measured once per start of it."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from fpmdask.coordinator.context import RunContext

# Every worker receives a probe from so many others, one after the other: where no more than two
# links are slow, one of them was not on a way between two fast ones.
TURNS = 3
# A probe that takes longer says no more than that somebody hangs.
PROBE_SECONDS = 10.0


@dataclass(frozen=True)
class Link:
    """Seconds per byte that a worker receives and sends."""

    receiving: float
    sending: float


async def measured_links(context: RunContext) -> dict[str, Link]:
    """Return the links of the run's workers, by address; those without channels are left out.

    Workers receive in a ring, all at once, so that each one sends to one at a time; what is slow
    with every partner is slow itself. Measured where a worker has started since the last time.
    """
    known = context.coordinator.links
    workers = {a: w for a, w in context.workers.items() if a in context.channels}
    if len(workers) > 1 and not all(identity in known for identity in workers.values()):
        ring = list(workers)
        receiving = dict.fromkeys(ring, math.inf)
        sending = dict.fromkeys(ring, math.inf)
        for turn in range(1, min(TURNS, len(ring) - 1) + 1):
            pairs = [(to, ring[(at + turn) % len(ring)]) for at, to in enumerate(ring)]
            found = await asyncio.gather(*(_probe(context, *pair) for pair in pairs))
            for (to, peer), seconds in zip(pairs, found, strict=True):
                receiving[to] = min(receiving[to], seconds)
                sending[peer] = min(sending[peer], seconds)
        for address, identity in workers.items():
            if math.isfinite(receiving[address]) and math.isfinite(sending[address]):
                known[identity] = Link(receiving[address], sending[address])
    return {address: known[w] for address, w in workers.items() if w in known}


async def _probe(context: RunContext, to: str, peer: str) -> float:
    """Return seconds per byte from `peer` to the worker `to`, inf where nothing came."""
    channel = context.channels.get(peer)
    if channel is None:
        return math.inf
    try:
        probing = context.scheduler.rpc(to).fpmdask_probe(
            run=context.run, peer=peer, channel=channel
        )
        answer = await asyncio.wait_for(probing, PROBE_SECONDS)
    except OSError:  # TimeoutError is one
        return math.inf
    return math.inf if answer is None else float(answer)
