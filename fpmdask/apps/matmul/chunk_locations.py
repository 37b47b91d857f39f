"""Where the chunks of A and B are and how their holders are reached, in a few bytes per chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import msgpack

from fpmdask.apps.matmul.spec import MatmulSpec

Address = tuple[str, int]


@dataclass(frozen=True)
class ChunkLocations:
    """What every share of a product is told, and does not depend on which share it is.

    Parameters
    ----------
    holders
        Key of a chunk -> workers that hold it.
    channels
        Worker -> (host, port) of its channel, for those that have one.
    relays
        Key of a chunk -> the worker that passes it on instead of its holders.

    Examples
    --------
    >>> import numpy as np
    >>> axis = (4,)
    >>> spec = MatmulSpec((4, 4, 4), np.dtype("f8"), (axis, axis), (axis, axis), "a", "b")
    >>> where = ChunkLocations({("a", 0, 0): ["x"], ("b", 0, 0): ["x", "y"]}, {"y": ("::1", 80)})
    >>> ChunkLocations.unpacked(spec, where.packed(spec)) == where
    True
    """

    holders: Mapping[Any, Sequence[str]]
    channels: Mapping[str, Address]
    relays: Mapping[Any, str] = field(default_factory=dict)

    def packed(self, spec: MatmulSpec) -> bytes:
        """Return the same as bytes, made once for all shares. O(holders + channels)."""
        named = {worker for places in self.holders.values() for worker in places}
        workers = sorted(named | set(self.channels) | set(self.relays.values()))
        number = {worker: n for n, worker in enumerate(workers)}
        numbers = spec.numbers
        packed: bytes = msgpack.packb(
            [
                [(worker, self.channels.get(worker)) for worker in workers],
                [
                    (numbers[key], [number[worker] for worker in places])
                    for key, places in self.holders.items()
                    if places
                ],
                [(numbers[key], number[worker]) for key, worker in self.relays.items()],
            ]
        )
        return packed

    @classmethod
    def unpacked(cls, spec: MatmulSpec, packed: bytes) -> Self:
        """Return what was `packed`."""
        workers, holders, relays = msgpack.unpackb(packed)
        keys = spec.keys
        return cls(
            {keys[key]: [workers[n][0] for n in places] for key, places in holders},
            {worker: (at[0], at[1]) for worker, at in workers if at is not None},
            {keys[key]: workers[n][0] for key, n in relays},
        )
