"""What a machine is to MHETA: memory, disk and network of every node."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np

from fpmdask.errors import PartitionError
from fpmdask.mheta import checks
from fpmdask.mheta.checks import FloatArray

PerNode = Sequence[float | None] | None


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """The nodes and the network between them.

    Parameters
    ----------
    nodes : int
        How many there are, at least 1.
    memory_bytes : sequence of int or None, optional
        Memory for rows, one number per node; None, also as an entry, is unlimited.
    read_overhead_s, write_overhead_s, prefetch_overhead_s : sequence of float, optional
        Seconds of CPU of a read, of a write, and of an asynchronous read beyond a read's.
    read_s_per_byte, write_s_per_byte : sequence of float, optional
        Seconds per byte of the disk.
    send_overhead_s, receive_overhead_s : sequence of float, optional
        Seconds of CPU of a message, whatever its size.
    send_s_per_byte, receive_s_per_byte : sequence of float, optional
        Seconds of CPU per byte of a message.
    latency_s, transfer_s_per_byte : float
        Seconds of a message on the wire, between any two nodes.

    Raises
    ------
    PartitionError
        If a field has a wrong type, length or value; the message names field and node.

    Notes
    -----
    Fields are per node, in node order. Where a field or an entry of it is None, the figure is 0; in
    `memory_bytes` None means that there is no limit. Two machines are equal if all figures are.

    Examples
    --------
    >>> machine = Machine(2, memory_bytes=[8_000_000, None], read_overhead_s=[0.001, 0.002])
    >>> machine.figures("memory_bytes"), machine.figures("write_overhead_s")
    (array([8000000.,      inf]), array([0., 0.]))
    """

    nodes: int
    memory_bytes: PerNode = None
    read_overhead_s: PerNode = None
    read_s_per_byte: PerNode = None
    write_overhead_s: PerNode = None
    write_s_per_byte: PerNode = None
    prefetch_overhead_s: PerNode = None
    send_overhead_s: PerNode = None
    send_s_per_byte: PerNode = None
    receive_overhead_s: PerNode = None
    receive_s_per_byte: PerNode = None
    latency_s: float = 0.0
    transfer_s_per_byte: float = 0.0
    # all figures, by which machines are compared
    _key: tuple[Any, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        nodes = checks.count(self.nodes, "nodes of a machine", most=checks.MOST_NODES)
        object.__setattr__(self, "nodes", nodes)
        for name in PER_NODE:
            found = getattr(self, name)
            if found is not None:
                entries = checks.per_node(found, name, nodes)
                kept = tuple(_entry(name, node, v) for node, v in enumerate(entries))
                object.__setattr__(self, name, kept)
        for name in SHARED:
            object.__setattr__(self, name, checks.figure(getattr(self, name), name))
        per_node = (self.figures(name).tobytes() for name in PER_NODE)
        key = (nodes, self.latency_s, self.transfer_s_per_byte, *per_node)
        object.__setattr__(self, "_key", key)

    def figures(self, name: str) -> FloatArray:
        """Return a field per node as float64 of shape [nodes], without None.

        Parameters
        ----------
        name : str
            One of the fields that are per node.

        Returns
        -------
        ndarray of float64
            0 for None; in memory ``inf``.
        """
        missing = np.inf if name == "memory_bytes" else 0.0
        found = getattr(self, name)
        entries = [None] * self.nodes if found is None else found
        return np.array([missing if v is None else float(v) for v in entries])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Machine):
            return NotImplemented
        return self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], nodes: int) -> Self:
        """Return the machine that a mapping of plain data describes, as `to_dict` writes it.

        Parameters
        ----------
        data : mapping
            The fields but `nodes`; a missing key has its default.
        nodes : int
            How many nodes it has.

        Raises
        ------
        PartitionError
            If a key is unknown, or a value is not allowed; the message names the place.
        """
        data = checks.mapping(data, "machine", (*PER_NODE, *SHARED))
        try:
            return cls(nodes, **data)
        except PartitionError as error:
            raise PartitionError(f"machine: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are known, but `nodes`, as plain data for JSON."""
        lists = {name: getattr(self, name) for name in PER_NODE}
        found: dict[str, Any] = {k: list(v) for k, v in lists.items() if v is not None}
        return found | {name: v for name in SHARED if (v := getattr(self, name))}


SHARED = ("latency_s", "transfer_s_per_byte")
PER_NODE = tuple(f.name for f in fields(Machine) if f.name not in ("nodes", *SHARED, "_key"))


def _entry(name: str, node: int, value: Any) -> float | None:
    where = f"{name}[{node}] (node {node})"
    if value is None:
        return None
    if name != "memory_bytes":
        return checks.figure(value, where)
    unlimited = isinstance(value, float) and value == math.inf
    return None if unlimited else checks.nbytes(value, where)
