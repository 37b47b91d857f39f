"""What a byte costs on the way to and from a worker, and which links are slow. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# A link that takes so many times longer than the middle one is slow.
SLOW = 4.0


@dataclass(frozen=True)
class Link:
    """Seconds per byte that a worker receives and sends."""

    receiving: float
    sending: float


def slow_links(links: Mapping[str, Link]) -> set[str]:
    """Return the workers whose links, either way, are far slower than the middle ones."""
    if not links:
        return set()
    receiving, sending = (
        sorted(rates)[len(links) // 2]
        for rates in zip(*((link.receiving, link.sending) for link in links.values()), strict=True)
    )
    return {
        worker
        for worker, link in links.items()
        if link.receiving > SLOW * receiving or link.sending > SLOW * sending
    }
