"""Which node is which rank, and what its messages cost: R7, R8."""

from dataclasses import dataclass

import numpy as np

from fpmdask.mheta.checks import BoolArray, FloatArray, IntArray
from fpmdask.mheta.communication import PATTERN, MessageCosts, Pattern
from fpmdask.mheta.machine import Machine
from fpmdask.mheta.program import Program
from fpmdask.mheta.sections import Section


@dataclass(frozen=True, slots=True)
class Ranks:
    """Which node is which rank in each distribution of a batch; R7.

    Attributes
    ----------
    here : ndarray of bool, shape [p, K] or [p, 1]
        Which ranks exist.
    order : ndarray of int64 or None
        The node of each rank, those without rows last; None where all nodes have rows.
    """

    here: BoolArray
    order: IntArray | None

    @classmethod
    def of(cls, rows: FloatArray) -> "Ranks":
        """Return the ranks of a batch of rows of shape [p, K]."""
        if rows.all():
            return cls(np.ones((rows.shape[0], 1), dtype=np.bool_), None)
        empty = rows == 0
        order = np.argsort(empty, axis=0, kind="stable")
        return cls(~np.take_along_axis(empty, order, axis=0), order)

    def by_rank(self, values: FloatArray) -> FloatArray:
        """Return values of nodes, shape [..., p, K] or [p, 1], in the order of ranks."""
        if self.order is None:
            return values
        if values.shape[-1] == 1 != self.order.shape[-1]:
            return np.asarray(values[:, 0][self.order])
        order = np.broadcast_to(self.order, values.shape)
        return np.take_along_axis(values, order, axis=-2)

    def by_node(self, values: FloatArray, absent: float) -> FloatArray:
        """Return values of ranks, shape [p, K], in the order of nodes."""
        found = np.where(self.here, values, absent)
        if self.order is None:
            return found
        placed = np.empty_like(found)
        np.put_along_axis(placed, self.order, found, axis=0)
        return placed


class SectionMessages:
    """The message costs of a section on every node, and its pattern prepared for a batch."""

    def __init__(self, section: Section, program: Program, machine: Machine) -> None:
        words = section.communication
        figure = {name: machine.figures(name)[:, np.newaxis] for name in _MESSAGES}
        nbytes = float(words.message_bytes)
        self._send = figure["send_overhead_s"] + figure["send_s_per_byte"] * nbytes
        self._receive = figure["receive_overhead_s"] + figure["receive_s_per_byte"] * nbytes
        # a message of an array that is out of core is read from disk first
        streamed = {array.name for array in program.arrays if not array.resident}
        self._read: FloatArray | None = None
        if words.pattern != "none" and words.source in streamed:
            self._read = figure["read_overhead_s"] + figure["read_s_per_byte"] * nbytes
        self._wire = machine.latency_s + machine.transfer_s_per_byte * nbytes
        self._pattern, self._tiles = PATTERN[words.pattern], section.tiles
        # where all nodes have rows, and no message is read from disk
        self._everyone: Pattern | None = None
        self._spent: tuple[FloatArray, FloatArray] | None = None

    @property
    def from_disk(self) -> bool:
        """Whether costs depend on who is out of core."""
        return self._read is not None

    def spent(self, ranks: Ranks, out: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Return the seconds that each node sends and receives, [p], for one distribution."""
        if self._spent is not None and ranks.order is None:
            return self._spent
        sent, received = (ranks.by_node(n, 0.0) for n in self.pattern(ranks, out).messages)
        spent = (sent * self._sending(out))[:, 0], (received * self._receive)[:, 0]
        if self._read is None and ranks.order is None:
            self._spent = spent
        return spent

    def pattern(self, ranks: Ranks, out: BoolArray) -> Pattern:
        """Return the pattern for a batch; where all nodes have rows it is made only once."""
        if self._read is not None or ranks.order is not None:
            return self._made(ranks, self._sending(out))
        if self._everyone is None:
            self._everyone = self._made(ranks, self._send)
        return self._everyone

    def _sending(self, out: BoolArray) -> FloatArray:
        """Return S of R8 per node."""
        return self._send if self._read is None else self._send + out * self._read

    def _made(self, ranks: Ranks, send: FloatArray) -> Pattern:
        rank_of = ranks.by_rank
        sent = send if _equal(send) else rank_of(send)
        received = self._receive if _equal(self._receive) else rank_of(self._receive)
        return self._pattern(MessageCosts(sent, received, self._wire, ranks.here, self._tiles))


_MESSAGES = (
    "send_overhead_s",
    "send_s_per_byte",
    "receive_overhead_s",
    "receive_s_per_byte",
    "read_overhead_s",
    "read_s_per_byte",
)


def _equal(values: FloatArray) -> bool:
    """Return whether all nodes have the same value."""
    return values.shape[-1] == 1 and bool((values == values[0]).all())
