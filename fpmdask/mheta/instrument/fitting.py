"""From the events of one instrumented iteration to the figures of a program and a machine."""

from collections.abc import Mapping, Sequence
from typing import Any

from fpmdask.errors import PartitionError
from fpmdask.mheta import checks
from fpmdask.mheta.instrument.benchmarks import Benchmark, node_benchmarks
from fpmdask.mheta.instrument.computing import seconds_per_row, stage_models
from fpmdask.mheta.instrument.disk import check_streamed, disk_costs
from fpmdask.mheta.instrument.events import Event
from fpmdask.mheta.instrument.network import fit_network
from fpmdask.mheta.instrument.overlap import check_overlap
from fpmdask.mheta.instrument.peers import fit_communication
from fpmdask.mheta.instrument.trace import NodeTrace, node_traces
from fpmdask.mheta.machine import Machine
from fpmdask.mheta.program import Program
from fpmdask.mheta.sections import Section, Stage


def fit(
    program: Program,
    traces: Mapping[int, Sequence[Event]],
    benchmarks: Mapping[int, Mapping[str, Any]],
    memory_bytes: Sequence[float | None] | None,
    *,
    models: bool = False,
) -> tuple[Program, Machine]:
    """Return the figures of a program and its machine, from one instrumented iteration.

    Parameters
    ----------
    program : Program
        The structure: arrays, sections, stages, tiles, patterns. Its figures (seconds per row,
        models, message sizes and sources) are ignored.
    traces : mapping of int to sequence of Event
        The events of each node 0 … p − 1, as a `Recorder` gives them; their order matters only
        where times are equal.
    benchmarks : mapping of int to mapping
        What microbenchmarks measured on each node, in seconds: ``"messages"``, tuples (peer,
        nbytes, send, receive, round_trip) of at least two sizes, needed if the program has
        messages; ``"prefetch_overhead_s"``, needed if it prefetches; ``"reads"`` and ``"writes"``,
        tuples (nbytes, seconds) of calls, no outliers, that count as those of the iteration;
        ``"read_overhead_s"`` and ``"write_overhead_s"``, used where one size is known.
    memory_bytes : sequence of int or None, or None
        The memory for rows of each node, which is a limit and not measured; None is unlimited.
    models : bool
        Whether stages with compute events in blocks of two or more sizes get a model per node in
        place of seconds per row.

    Returns
    -------
    tuple of Program and Machine
        For p nodes. Read (write) figures are None if nothing is read (written), message figures
        if there are neither messages nor benchmarks of them.

    Raises
    ------
    PartitionError
        If nodes, events or benchmarks are missing, contradict the structure or each other, or are
        damaged; the message names the node, and where there is one the event and the field.

    Notes
    -----
    In the instrumented iteration every node has a row at least and does I/O for every distributed
    array that the program streams, also where it is in core, in blocks of two sizes or more; the
    issue of a prefetch is a blocking read and the wait for it does nothing (`Event`).

    ==================== ========================================================================
    figure               where it comes from
    ==================== ========================================================================
    seconds_per_row      (stage marks − reads, writes, issues inside), summed over tiles, / rows
    models               points (rows, tiles · mean seconds of the compute events of such blocks)
    read, write          a line through all calls of a node (`linear.robust_line`), those of its
                         benchmark too; issues are reads
    prefetch_overhead_s  the benchmark, not below 0; T_A is compared with the computing
    send, receive        a line through the benchmarks of a node
    latency, transfer    a line through (round trip − both nodes' overheads) / 2 of all pairs
    message_bytes        the mean over the messages of the section
    source               the array of the reads outside of stages, one before each send
    ==================== ========================================================================

    Without noise the figures that made a trace come back to 1e-9. With 5 % noise on every duration,
    2 % of the calls ten times as long, and Table 1's machines of 8 nodes with 512 rows each:

    - Predicted seconds over the whole `spectrum` are within 3 % (seen: 0.5 to 1 %, at most 2.4 %)
      from 60 blocks and 60 single rows per node, or from three blocks in each of 128 tiles, and
      20 benchmarks per pair of nodes.
    - All figures of all nodes are within 3 % from 4096 rows per node, in 100 blocks and 200 single
      rows, and 40 benchmarks per pair, of 0 bytes and of 1 MiB.
    - With fewer calls it is the sum of overhead and bytes that is known, at about the sizes traced,
      and neither alone: of an overhead of 1 ms beside transfers of 30 and 70 ms nothing is.
    - From three blocks in one tile, the last half as large, seconds per row are off by 5 to 9 % and
      seconds per byte by 10 to 25 % on the worst of 8 nodes; predictions by 4 %, one in ten by
      more than 6 %. One outlier among three calls does no more harm, two spoil all.

    Where the paper and the contract are silent:

    1. T_A and computing that disagree by more than a fifth are an error, not a warning: a wait in
       the wrong place hides nothing (`overlap.check_overlap`).
    2. Messages of a section may differ in size, as do tiles of unequal width; `message_bytes` is
       their mean. A node whose own mean is a factor of two away is an error.
    3. A node without rows is an error, and so is a stage that does not read or write all rows of
       its node. Reading more than its rows (halos) is allowed.
    4. Either every message of a section is read from one array, or none is.
    5. Between unequal nodes a round trip holds the overheads of both.

    References
    ----------
    M. Nakazawa, D. K. Lowenthal, W. Zhou (2005), The MHETA Execution Model for Heterogeneous
    Clusters, section 4.1.

    Examples
    --------
    >>> from fpmdask.mheta import Array
    >>> program = Program([Section([Stage(reads=["A"])])], [Array("A", 8)])
    >>> trace = [
    ...     Event("stage", 0, 0, 0, rows=12, start=0.0, seconds=11.0),
    ...     Event("read", 0, 0, 0, "A", rows=8, nbytes=64, start=0.0, seconds=3.0),
    ...     Event("read", 0, 0, 0, "A", rows=4, nbytes=32, start=7.0, seconds=2.0),
    ... ]
    >>> found, machine = fit(program, {0: trace}, benchmarks={}, memory_bytes=[80])
    >>> found.sections[0].stages[0].seconds_per_row
    (0.5,)
    >>> round(machine.read_overhead_s[0], 9), round(machine.read_s_per_byte[0], 9)
    (1.0, 0.03125)
    """
    if not isinstance(program, Program):
        raise PartitionError(f"program is a {type(program).__name__}; a Program is needed")
    models = checks.flag(models, "models")
    nodes = node_traces(program, traces)
    measured = node_benchmarks(benchmarks, len(nodes))
    check_streamed(program, nodes)
    check_overlap(program, nodes)
    sections = [_fit_section(nodes, i, s, models) for i, s in enumerate(program.sections)]
    found = Program(sections, program.arrays, program.fixed_bytes)
    read_overheads, read_paces = disk_costs(nodes, measured, "read")
    write_overheads, write_paces = disk_costs(nodes, measured, "write")
    machine = Machine(
        len(nodes),
        memory_bytes=memory_bytes,
        read_overhead_s=read_overheads,
        read_s_per_byte=read_paces,
        write_overhead_s=write_overheads,
        write_s_per_byte=write_paces,
        prefetch_overhead_s=_prefetch_overheads(program, measured),
        **_message_costs(program, measured),
    )
    return found, machine


def _fit_section(nodes: Sequence[NodeTrace], index: int, section: Section, models: bool) -> Section:
    stages = [_fit_stage(nodes, index, j, stage, models) for j, stage in enumerate(section.stages)]
    return Section(stages, section.tiles, fit_communication(nodes, index, section))


def _fit_stage(
    nodes: Sequence[NodeTrace], section: int, index: int, stage: Stage, models: bool
) -> Stage:
    structure = (stage.reads, stage.writes, stage.prefetch)
    found = stage_models(nodes, section, index) if models else None
    if found is not None:
        return Stage(None, found, *structure)
    return Stage(seconds_per_row(nodes, section, index), None, *structure)


def _prefetch_overheads(
    program: Program, benchmarks: Sequence[Benchmark]
) -> tuple[float | None, ...] | None:
    found = tuple(benchmark.overhead("prefetch") for benchmark in benchmarks)
    resident = {array.name for array in program.arrays if array.resident}
    stages = [stage for section in program.sections for stage in section.stages]
    if any(stage.prefetch and not resident.issuperset(stage.reads) for stage in stages):
        for node, overhead in enumerate(found):
            if overhead is None:
                raise PartitionError(
                    f"the benchmarks of node {node} have no prefetch_overhead_s, which a stage "
                    "that prefetches needs: the seconds of CPU of an asynchronous read's issue "
                    "beyond the overhead of a read"
                )
    return None if all(overhead is None for overhead in found) else found


def _message_costs(program: Program, benchmarks: Sequence[Benchmark]) -> dict[str, Any]:
    messages = any(section.communication.pattern != "none" for section in program.sections)
    measured = any(benchmark.messages for benchmark in benchmarks)
    if len(benchmarks) > 1 and (messages or measured):
        return fit_network(benchmarks)._asdict()
    return {}
