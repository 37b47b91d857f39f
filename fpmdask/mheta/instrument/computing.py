"""Computing: seconds per row, and models, of one stage on every node."""

from collections import defaultdict
from collections.abc import Sequence

from fpmdask.errors import PartitionError
from fpmdask.mheta.instrument.trace import NodeTrace
from fpmdask.models import PiecewiseLinearModel


def seconds_per_row(traces: Sequence[NodeTrace], section: int, stage: int) -> tuple[float, ...]:
    """Return the seconds of computing per row, one number per node.

    Notes
    -----
    A tile has 1/tiles of each row, so the sum over the tiles is that of whole rows. A sum, and not
    a median over the tiles, since tiles may differ in their work.
    """
    return tuple(
        sum(tile.computing for tile in trace.stages[section, stage]) / trace.rows
        for trace in traces
    )


def stage_models(
    traces: Sequence[NodeTrace], section: int, stage: int
) -> tuple[PiecewiseLinearModel, ...] | None:
    """Return models of seconds by rows, one per node, through the sizes of its blocks.

    Returns
    -------
    tuple of PiecewiseLinearModel or None
        None if a node has no compute events in this stage, or no computing, or if no node has
        blocks of two sizes: then seconds per row say as much.

    Raises
    ------
    PartitionError
        If the blocks of a tile are not the node's rows.

    Notes
    -----
    A point is (rows, tiles · mean seconds of the blocks of so many rows). All seconds of a node
    are scaled by the same factor so that they sum to the computing of the stage: what the program
    does between the compute events and the I/O (loops, views) is computing, too.
    """
    sizes = [_block_seconds(trace, section, stage) for trace in traces]
    if not all(sizes) or all(len(found) == 1 for found in sizes):
        return None
    models = []
    for trace, found in zip(traces, sizes, strict=True):
        tiles = trace.stages[section, stage]
        means = {rows: sum(seconds) / len(seconds) for rows, seconds in sorted(found.items())}
        timed = sum(map(sum, found.values()))
        if not all(means.values()):
            return None
        scale = len(tiles) * sum(tile.computing for tile in tiles) / timed
        points = [scale * mean for mean in means.values()]
        models.append(PiecewiseLinearModel.from_points(list(means), points))
    return tuple(models)


def _block_seconds(trace: NodeTrace, section: int, stage: int) -> dict[int, list[float]]:
    """Return the seconds of computing of each block of a node, by the rows of the block."""
    found: defaultdict[int, list[float]] = defaultdict(list)
    tiles = [(tile, tile.of("compute")) for tile in trace.stages[section, stage]]
    for tile, blocks in tiles:
        rows = sum(block.rows or 0 for block in blocks)
        if rows != trace.rows and any(blocks for _, blocks in tiles):
            raise PartitionError(
                f"{tile.where}: the compute events have {rows} rows in sum, the node has "
                f"{trace.rows}; record each block once, in every tile"
            )
        for block in blocks:
            found[block.rows or 0].append(block.seconds)
    return found
