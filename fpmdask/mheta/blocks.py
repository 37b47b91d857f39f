"""Which rows are in core, and the blocks (ICLA) in which a node streams the others: R1, R2."""

import math
from dataclasses import dataclass

import numpy as np

from fpmdask.errors import PartitionError
from fpmdask.mheta.checks import FloatArray
from fpmdask.mheta.machine import Machine
from fpmdask.mheta.program import Program
from fpmdask.mheta.sections import Array, Stage


@dataclass(frozen=True, slots=True)
class Streams:
    """What a stage moves between disk and memory on a node that is out of core.

    Attributes
    ----------
    reads, writes : int
        How many out-of-core arrays it reads and writes, n_r and n_w.
    read_bytes, write_bytes : int
        Their row bytes in sum, β_r and β_w.
    need : int
        Memory of one row of a block: the arrays that it reads or writes, each once, and those
        that it reads once more if it prefetches. 0: the stage does no I/O.
    """

    reads: int
    writes: int
    read_bytes: int
    write_bytes: int
    need: int


def streams(stage: Stage, arrays: tuple[Array, ...]) -> Streams:
    """Return what a stage streams; resident arrays never are.

    Examples
    --------
    >>> streams(Stage(reads=["A", "v"], writes=["B"]), (Array("A", 8), Array("B", 4),
    ...     Array("v", 2, resident=True)))
    Streams(reads=1, writes=1, read_bytes=8, write_bytes=4, need=12)
    """
    sizes = {array.name: array.row_bytes for array in arrays if not array.resident}
    reads = [name for name in stage.reads if name in sizes]
    writes = [name for name in stage.writes if name in sizes]
    read_bytes, write_bytes = (sum(sizes[n] for n in names) for names in (reads, writes))
    need = sum(sizes[name] for name in {*reads, *writes})
    need += read_bytes if stage.prefetch else 0
    return Streams(len(reads), len(writes), read_bytes, write_bytes, need)


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of every node in rows; float64 arrays of shape [p, 1].

    Attributes
    ----------
    room : ndarray of float64
        M - F: bytes for rows, negative where not even `fixed_bytes` fit, ``inf`` without a limit.
    resident_bytes : int
        R: row bytes of the resident arrays in sum.
    in_core : ndarray of float64
        Most rows that are in core, at least 0.
    most : ndarray of float64
        Most rows that are possible at all: with more the distribution is infeasible.
    """

    room: FloatArray
    resident_bytes: int
    in_core: FloatArray
    most: FloatArray

    @classmethod
    def of(cls, program: Program, machine: Machine) -> "Memory":
        """Return the memory of a machine's nodes for a program's rows."""
        rooms = _rooms(program, machine)
        resident = sum(a.row_bytes for a in program.arrays if a.resident)
        total = sum(a.row_bytes for a in program.arrays)
        in_core = [max(0.0, _quotient(room, total)) for room in rooms]
        streamed = [_most_streamed(room, resident, _blocks_of_one_row(program)) for room in rooms]
        most = np.maximum(in_core, streamed)
        return cls(_column(rooms), resident, _column(in_core), _column(most))

    def block_rows(self, rows: FloatArray, need: int, tiles: int) -> FloatArray:
        """Return b before it is bounded by the rows: ⌊τ (M - F - x R) / need⌋, at least 1.

        Parameters
        ----------
        rows : ndarray of float64, shape [p, K]
            x, rows of every node.
        need : int
            Bytes of one row of a block, above 0.
        tiles : int
            τ: a tile has 1/τ of a row's bytes.

        Returns
        -------
        ndarray of float64
            Of shape [p, K], or [p, 1] if no array is resident: b is the same for all rows then.
        """
        room = self.room - rows * self.resident_bytes if self.resident_bytes else self.room
        return np.maximum(np.floor(room * tiles / need), 1.0)


def capacity(program: Program, machine: Machine) -> FloatArray:
    """Return how many rows of a program are in core on each node.

    Parameters
    ----------
    program : Program
    machine : Machine

    Returns
    -------
    ndarray of float64, shape [p]
        ⌊(M - F) / Σβ⌋, 0 if that is negative, ``inf`` if there is no limit or no array.

    Raises
    ------
    PartitionError
        If program and machine have different numbers of nodes.

    References
    ----------
    Nakazawa, Lowenthal and Zhou (2005), section 4.2.1: "a simple heuristic".

    Examples
    --------
    >>> from fpmdask.mheta import Section
    >>> program = Program([Section([Stage(reads=["A"])])], [Array("A", 100)], fixed_bytes=50)
    >>> capacity(program, Machine(3, memory_bytes=[1000, 10, None]))
    array([ 9.,  0., inf])
    """
    check_nodes(program, machine)
    total = sum(array.row_bytes for array in program.arrays)
    rooms = _rooms(program, machine)
    most = [max(0.0, _quotient(room, total)) if total else np.inf for room in rooms]
    return np.array(most, dtype=np.float64)


def block_rows(program: Program, memory_bytes: float | None, rows: int) -> tuple[int, ...] | None:
    """Return the rows of a block of each stage on one node: R1, R2.

    Parameters
    ----------
    program : Program
    memory_bytes : int or None
        Memory of the node; None is unlimited.
    rows : int
        Of the node.

    Returns
    -------
    tuple of int or None
        In the order of sections and stages; 0 where a stage does no I/O, as all do where the rows
        are in core. None: so many rows are infeasible.

    Examples
    --------
    >>> from fpmdask.mheta import Section
    >>> program = Program([Section([Stage(reads=["A"], prefetch=True)])], [Array("A", 100)])
    >>> [block_rows(program, 1000, rows) for rows in (10, 11)], block_rows(program, 199, 2)
    ([(0,), (5,)], None)
    """
    memory = Memory.of(program, Machine(1, memory_bytes=[memory_bytes]))
    count = np.array([[float(rows)]])
    if rows > memory.most[0, 0]:
        return None
    found = []
    for section in program.sections:
        for stage in section.stages:
            need = 0 if rows <= memory.in_core[0, 0] else streams(stage, tuple(program.arrays)).need
            block = memory.block_rows(count, need, section.tiles)[0, 0] if need else 0
            found.append(int(min(rows, block)))
    return tuple(found)


def check_nodes(program: Program, machine: Machine) -> None:
    """Refuse a program that has figures for another number of nodes than the machine."""
    if not isinstance(program, Program) or not isinstance(machine, Machine):
        raise PartitionError(
            f"a Program and a Machine are needed, got {type(program).__name__} and "
            f"{type(machine).__name__}"
        )
    if program.nodes not in (None, machine.nodes):
        raise PartitionError(
            f"the program's stages have figures for {program.nodes} nodes, the machine has "
            f"{machine.nodes}; give both the same nodes"
        )


def _rooms(program: Program, machine: Machine) -> list[float]:
    """Return M - F of every node, exact: both are whole and below 2**53."""
    rooms: list[float] = (machine.figures("memory_bytes") - program.fixed_bytes).tolist()
    return rooms


def _quotient(room: float, row_bytes: int) -> float:
    """Return how many rows of so many bytes fit, -1 if not even none does."""
    if room < 0:
        return -1.0
    return math.floor(room / row_bytes) if row_bytes and room < math.inf else math.inf


def _blocks_of_one_row(program: Program) -> list[tuple[int, int]]:
    """Return (need, τ) of every stage that streams."""
    found = [
        (streams(stage, tuple(program.arrays)).need, section.tiles)
        for section in program.sections
        for stage in section.stages
    ]
    return [(need, tiles) for need, tiles in found if need]


def _most_streamed(room: float, resident: int, needs: list[tuple[int, int]]) -> float:
    """Return the most rows x of a node that is out of core, in whole numbers of any size.

    The resident rows fit, x R <= M - F, and every stage has a block: b >= 1, which is
    τ (M - F - x R) >= need.
    """
    if math.isinf(room):
        return math.inf
    most = _quotient(room, resident)
    for need, tiles in needs:
        left = tiles * int(room) - need
        if left < 0:
            return -1.0
        most = min(most, left // (tiles * resident) if resident else math.inf)
    return most


def _column(values: object) -> FloatArray:
    return np.array(values, dtype=np.float64).reshape(-1, 1)
