"""What workers are told to multiply: panels in their order, and where chunks are."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fpmdask.apps.matmul.chunk_locations import ChunkLocations
from fpmdask.apps.matmul.parts import Assignment
from fpmdask.apps.matmul.plan import MatmulSpec, Tile, panels
from fpmdask.apps.matmul.relays import in_order_of_arrival
from fpmdask.apps.matmul.spec import MULTIPLY
from fpmdask.apps.matmul.tiling import cuts
from fpmdask.runtime.coordinator.chunks import without_fpmdask
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.tickets import Order

# The first panel of a share is so much less deep.
FIRST = 4


class MultiplyOrders:
    """Makes the orders of the step `MULTIPLY` of one product.

    Parameters
    ----------
    context
        The run.
    spec
        The product.
    tiles
        The tiles of each worker, as they were placed first.
    """

    def __init__(
        self, context: RunContext, spec: MatmulSpec, tiles: Mapping[str, Collection[Tile]]
    ) -> None:
        self._context, self._spec = context, spec
        depth = context.tuning.matmul.panel_depth
        self._panels: Sequence[tuple[int, int]] = panels(spec, len(tiles), depth=depth)
        self._turn = {worker: n for n, worker in enumerate(tiles)}
        self._cuts = cuts(tile for own in tiles.values() for tile in own)

    @property
    def deepest(self) -> int:
        """Lines of the inner dimension that the deepest panel has."""
        return max(k1 - k0 for k0, k1 in self._panels)

    def joined(self, worker: str) -> None:
        """Give a worker that has joined its turn."""
        self._turn.setdefault(worker, len(self._turn))

    async def in_order_of_arrival(
        self, relays: Mapping[Any, str], places: Mapping[Any, list[str]]
    ) -> None:
        """Have panels multiplied in the order in which relayed chunks come."""
        self._panels = await asyncio.to_thread(
            in_order_of_arrival, self._spec, self._panels, relays, places
        )

    def panels_of(self, worker: str, *, in_order: bool) -> list[tuple[int, int]]:
        """Return the panels of a share of a worker, first things first.

        Everybody starts with another panel, so that not all ask the same owner at once; relayed
        chunks come in the order of panels.
        """
        turn = 0 if in_order else self._turn[worker] * len(self._panels) // len(self._turn)
        (k0, k1), *later = [*self._panels[turn:], *self._panels[:turn]]
        # Nobody can multiply before the first panel is there: it is a small one.
        first = k0 + max(1, (k1 - k0) // FIRST)
        return [(k0, first), (first, k1), *later] if first < k1 else [(k0, k1), *later]

    def orders(
        self,
        assignments: Sequence[Assignment],
        holders: Mapping[Any, list[str]],
        relays: Mapping[Any, str],
        panels: Mapping[int, Sequence[tuple[int, int]]],
        taken: Mapping[int, Any],
    ) -> list[Order]:
        """Return an order for each assignment.

        Parameters
        ----------
        assignments
            Which part is whose.
        holders
            Chunk → who holds it.
        relays
            Chunk → who is asked for it instead of its holder.
        panels, taken
            Part → its panels, and the lines that others have multiplied of it.
        """
        channels = self._context.members.channels
        reached = {key: relay for key, relay in relays.items() if relay in channels}
        relaying: dict[str, list[Any]] = {}
        for key, relay in reached.items():
            for owner in holders[key][:1]:
                if owner in channels:
                    relaying.setdefault(relay, []).append((key, owner))
        for_all = {
            "cuts": self._cuts,
            "product": self._spec.to_json(),
            "where": ChunkLocations(holders, channels, reached).packed(self._spec),
            "bare": without_fpmdask(self._context.scheduler, holders),
        }
        # It uses all threads of its worker, and the buffers of the one scratch.
        slots = self._context.coordinator.slots
        found = []
        for assignment in assignments:
            payload = {
                **for_all,
                "part": assignment.part,
                "tile": assignment.tile.bounds,
                "panels": panels[assignment.part],
                "relay": relaying.get(assignment.worker, ()),
                "taken": taken.get(assignment.part, ()),
            }
            found.append(Order(assignment.worker, MULTIPLY, payload, slots))
        return found
