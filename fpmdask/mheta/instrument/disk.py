"""Reads and writes: what they cost each node, and that every node did all of them."""

from collections.abc import Sequence

from fpmdask.errors import PartitionError
from fpmdask.mheta.instrument.benchmarks import Benchmark
from fpmdask.mheta.instrument.linear import robust_line
from fpmdask.mheta.instrument.trace import NodeTrace, StageTrace
from fpmdask.mheta.program import Program
from fpmdask.mheta.sections import Stage

PerNode = tuple[float, ...] | None

# verb → the kinds of events that do it; the issue of a prefetch is made a blocking read
KINDS = {"read": ("read", "issue"), "write": ("write",)}


def disk_costs(
    traces: Sequence[NodeTrace], benchmarks: Sequence[Benchmark], verb: str
) -> tuple[PerNode, PerNode]:
    """Return the overhead in seconds and the seconds per byte of reads or writes, per node.

    Parameters
    ----------
    traces, benchmarks : sequence of NodeTrace, of Benchmark
        In node order.
    verb : str
        ``"read"`` or ``"write"``.

    Returns
    -------
    tuple of (tuple of float or None)
        None if no node reads (writes) anything.

    Raises
    ------
    PartitionError
        If only some nodes do it, or of a node one size is known and no benchmark of the overhead.

    Notes
    -----
    One line through all calls of a node whatever the array, those of its benchmark too: see
    `robust_line`.
    """
    calls = [trace.events(*KINDS[verb]) for trace in traces]
    if not any(calls):
        return None, None
    figures = []
    for node, (found, benchmark) in enumerate(zip(calls, benchmarks, strict=True)):
        if not found:
            raise PartitionError(
                f"node {node} {verb}s nothing, others do; every node does I/O for every "
                "distributed array in the instrumented iteration, also where it is in core"
            )
        where = f"the {len(found)} {verb}s of node {node} ({verb}_overhead_s)"
        sizes = [call.nbytes or 0 for call in found]
        seconds = [call.seconds for call in found]
        known = getattr(benchmark, f"{verb}s")
        figures.append(robust_line(sizes, seconds, where, benchmark.overhead(verb), known))
    overheads, paces = zip(*figures, strict=True)
    return overheads, paces


def check_streamed(program: Program, traces: Sequence[NodeTrace]) -> None:
    """Refuse an iteration in which a node does not read or write all its rows in some stage.

    Raises
    ------
    PartitionError
        Naming the node, the array and the stage.
    """
    resident = {array.name for array in program.arrays if array.resident}
    for trace in traces:
        for (i, j), tiles in trace.stages.items():
            stage = program.sections[i].stages[j]
            for tile in tiles:
                _check_tile(stage, tile, trace.rows, resident)


def _check_tile(stage: Stage, tile: StageTrace, rows: int, resident: set[str]) -> None:
    for verb, names in (("read", stage.reads), ("write", stage.writes)):
        calls = tile.of(*KINDS[verb])
        for name in names:
            moved = sum(call.rows or 0 for call in calls if call.array == name)
            if name not in resident and moved < rows:
                raise PartitionError(
                    f"{tile.where}: {moved} of {rows} rows of array {name!r} {verb}; every node "
                    "does I/O for every distributed array in the instrumented iteration, also "
                    "where it is in core"
                )
