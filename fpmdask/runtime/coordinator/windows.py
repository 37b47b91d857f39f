"""Long loops of the scheduler's event loop in windows, between which everybody else has a turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


async def windows(items: Sequence[Item], size: int) -> AsyncIterator[Sequence[Item]]:
    """Yield the items in windows of ``size``; other callbacks run before each but the first.

    What was true of the cluster in one window need not be in the next.
    """
    for first in range(0, len(items), size):
        if first:
            await asyncio.sleep(0)
        yield items[first : first + size]
