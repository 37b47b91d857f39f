"""Prefetching in the instrumented iteration: the paper's T_A must agree with the computing."""

from collections import Counter
from collections.abc import Sequence

from fpmdask.errors import PartitionError
from fpmdask.mheta.instrument.trace import NodeTrace, StageTrace, place
from fpmdask.mheta.program import Program

# By how much the time between issue and wait may differ from the computing of the same blocks:
# 5 % noise of each of three blocks makes 1 to 2 %, a last block that computes a third faster per
# row 6 %; a wait in the wrong place, or a write before the wait, makes much more.
TOLERANCE = 0.2
# Differences below this share of a stage's seconds are of no consequence to a prediction.
MATTERS = 0.01


def check_overlap(program: Program, traces: Sequence[NodeTrace]) -> None:
    """Refuse a prefetching stage whose events are not those of R5 with blocking issues.

    Raises
    ------
    PartitionError
        If a block other than the first is not read by an issue, issues and waits do not alternate,
        waits take time, or T_A and the computing of the same blocks differ by more than
        `TOLERANCE` of the latter and `MATTERS` of the stage's seconds. The message names the node.

    Notes
    -----
    T_A, from the end of a block's last issue to the start of its first wait, encloses the
    computing of the block before; both are summed over the tiles of a stage. That computing is
    the compute events except the last of each tile, or without such events the computing of the
    stage less the share of the last block's rows.

    References
    ----------
    M. Nakazawa, D. K. Lowenthal, W. Zhou (2005), The MHETA Execution Model for Heterogeneous
    Clusters, section 4.1.1, figures 4 and 5.
    """
    for trace in traces:
        for (i, j), tiles in trace.stages.items():
            stage = program.sections[i].stages[j]
            if stage.prefetch and stage.reads:
                _check_stage(place(trace.node, i, j), tiles, trace.rows)


def _check_stage(where: str, tiles: Sequence[StageTrace], rows: int) -> None:
    whole = sum(tile.mark.seconds for tile in tiles)
    waits = sum(wait.seconds for tile in tiles for wait in tile.of("wait"))
    if waits > MATTERS * whole:
        raise PartitionError(
            f"{where}: the waits for prefetches take {waits:g} of {whole:g} s; in the instrumented "
            "iteration an issue blocks until the block is read, and a wait does nothing"
        )
    overlap = sum(_overlap_seconds(tile) for tile in tiles)
    computing = sum(_overlapped_computing(tile, rows) for tile in tiles)
    off = abs(overlap - computing)
    if off > TOLERANCE * computing and off > MATTERS * whole:
        raise PartitionError(
            f"{where}: {overlap:g} s from the issues of prefetches to their waits, but "
            f"{computing:g} s of computing of the same blocks; they may differ by "
            f"{TOLERANCE:.0%}: issue, compute a block, wait, write it, and measure again"
        )


def _overlap_seconds(tile: StageTrace) -> float:
    """Return T_A, summed over the blocks of a tile."""
    seconds, issued, pending = 0.0, False, None
    for call in tile.of("issue", "wait"):
        if call.kind == "issue":
            issued, pending = True, call.end
        elif not issued:
            raise PartitionError(f"{tile.where}: a wait at {call.start!r} s before any issue")
        elif pending is not None:  # the waits of further arrays follow at once
            seconds, pending = seconds + call.start - pending, None
    if pending is not None:
        raise PartitionError(f"{tile.where}: the last issue of a prefetch has no wait after it")
    return seconds


def _overlapped_computing(tile: StageTrace, rows: int) -> float:
    """Return the computing of all blocks of a tile but the last."""
    issues, first = tile.of("issue"), Counter(read.array for read in tile.of("read"))
    for name, reads in first.items():
        if reads > 1:
            raise PartitionError(
                f"{tile.where}: {reads} blocks of array {name!r} are read without an issue; a "
                "stage that prefetches reads only the first one so"
            )
    if not issues:
        return 0.0
    if blocks := tile.of("compute"):
        return sum(block.seconds for block in blocks[:-1])
    return tile.computing * max(0, rows - (issues[-1].rows or 0)) / rows
