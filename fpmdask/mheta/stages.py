"""What stages compute and stream: R3 to R6, equations 1 and 2 of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fpmdask.mheta.blocks import Memory, Streams, streams
from fpmdask.mheta.checks import BoolArray, FloatArray
from fpmdask.mheta.machine import Machine
from fpmdask.mheta.program import Program
from fpmdask.mheta.sections import Section, Stage
from fpmdask.models import Model
from fpmdask.models.bank import bank

ACCOUNTINGS = ("exact", "paper")


class Blocks(NamedTuple):
    """Blocks of a stage: N of b rows each, the last of l; N = 1, b = l = x in core."""

    number: FloatArray
    rows: FloatArray
    last: FloatArray


@dataclass(frozen=True, slots=True)
class SectionCosts:
    """Seconds of all tiles of a section, before its messages; float64 arrays of shape [p, K].

    Attributes
    ----------
    rate : ndarray of float64, shape [p, 1]
        Seconds per row of the stages of constant speed, which need no blocks.
    stages : tuple of StageCosts
        The stages that stream or have models, in order.
    positions : tuple of int
        Where these are among the section's stages.
    """

    rate: FloatArray
    stages: tuple["StageCosts", ...]
    positions: tuple[int, ...]

    @classmethod
    def of(
        cls, section: Section, program: Program, machine: Machine, memory: Memory, accounting: str
    ) -> "SectionCosts":
        """Prepare the stages of a section."""
        rate = np.zeros((machine.nodes, 1))
        for stage in section.stages:
            if stage.seconds_per_row is not None:
                rate[:, 0] += stage.seconds_per_row
        made = [
            StageCosts(stage, section.tiles, program, machine, memory, accounting)
            for stage in section.stages
        ]
        kept = [i for i, costs in enumerate(made) if costs.needed]
        return cls(rate, tuple(made[i] for i in kept), tuple(kept))


class StageCosts:
    """The costs of a stage that streams or has models, prepared for batches of distributions.

    Notes
    -----
    Everything is in whole sections: a tile's seconds times τ. O(p K) per batch, whatever the
    number of tiles, blocks and rows; a model adds its own lookup.
    """

    def __init__(
        self,
        stage: Stage,
        tiles: int,
        program: Program,
        machine: Machine,
        memory: Memory,
        accounting: str,
    ) -> None:
        found = streams(stage, tuple(program.arrays))
        figure = {name: machine.figures(name)[:, np.newaxis] for name in _DISK}
        self.streams, self.tiles, self._memory = found.need > 0, tiles, memory
        self._need, self._paper = found.need, accounting == "paper"
        self._prefetches = stage.prefetch and found.reads > 0 and self.streams
        with np.errstate(over="ignore"):
            self._prepare(figure, found)
        self._rate = None if stage.seconds_per_row is None else _column(stage.seconds_per_row)
        self._models = None if stage.models is None else _Models(stage.models)

    def _prepare(self, figure: dict[str, FloatArray], found: Streams) -> None:
        tiles = self.tiles
        # τ (n_r O_r + n_w O_w), of each block
        overhead = found.reads * figure["read_overhead_s"]
        self._overhead = tiles * (overhead + found.writes * figure["write_overhead_s"])
        # r β_r and w β_w, of each row
        self._read = figure["read_s_per_byte"] * found.read_bytes
        self._per_row = self._read + figure["write_s_per_byte"] * found.write_bytes
        # τ n_r O_A, of each prefetch
        self._issue = tiles * found.reads * figure["prefetch_overhead_s"]

    @property
    def needed(self) -> bool:
        """Whether it adds anything to rows times a constant."""
        return self.streams or self._models is not None

    def blocks(self, rows: FloatArray, out: BoolArray) -> Blocks:
        """Return the blocks of R2 where a node is out of core, one block of all rows elsewhere."""
        if not self.streams:
            return Blocks(np.ones_like(rows), rows, rows)
        most = self._memory.block_rows(rows, self._need, self.tiles)
        block = np.where(out, np.minimum(rows, most), rows)
        number = np.where(out, np.ceil(rows / most), 1.0)
        return Blocks(number, block, rows - (number - 1.0) * block)

    def number(self, rows: FloatArray, out: BoolArray) -> FloatArray:
        """Return N, 0 where nothing is streamed."""
        if not self.streams:
            return np.zeros_like(rows)
        most = self._memory.block_rows(rows, self._need, self.tiles)
        return np.where(out, np.ceil(rows / most), 0.0)

    def compute(self, rows: FloatArray, out: BoolArray) -> FloatArray | None:
        """Return the seconds of computing by the models, R3; None if there are none.

        A stage of constant speed is a part of `SectionCosts.rate`.
        """
        if self._models is None:
            return None
        if not (self.streams and out.any()):
            return self._models.time(rows)
        blocks = self.blocks(rows, out)
        most = self._models.time(blocks.rows)
        return (blocks.number - 1.0) * most + self._models.time(blocks.last)

    def io(self, rows: FloatArray, out: BoolArray) -> FloatArray | None:
        """Return the seconds of I/O, stalls on a prefetch included; None if nothing is streamed.

        Notes
        -----
        Equations 1 and 2 over all tiles, `a` prefetches of each array being issued:

        ``N τ (n_r O_r + n_w O_w) + (r β_r + w β_w) y + a τ n_r O_A - τ hidden``, y = x or N b.
        """
        if not self.streams:
            return None
        if not (self._paper or self._prefetches):
            number = np.ceil(rows / self._memory.block_rows(rows, self._need, self.tiles))
            seconds = number * self._overhead + rows * self._per_row  # equation 1
            return np.where(out, seconds, 0.0)
        blocks = self.blocks(rows, out)
        moved = blocks.number * blocks.rows if self._paper else rows
        seconds = blocks.number * self._overhead + moved * self._per_row  # equation 1
        if self._prefetches:
            issued = blocks.number - (0.0 if self._paper else 1.0)
            seconds += issued * self._issue - self._hidden(blocks)  # equation 2
        return np.where(out, seconds, 0.0)

    def _hidden(self, blocks: Blocks) -> FloatArray:
        """Return the seconds of transfers that computing hides, over all tiles.

        While block k is computed, t(b), block k + 1 comes: r β_r b, the last one r β_r l.
        """
        computing = self._block_seconds(blocks.rows)
        full = np.minimum(self._read * blocks.rows, computing)
        if self._paper:
            return (blocks.number - 1.0) * full
        last = np.minimum(self._read * blocks.last, computing)
        return np.where(blocks.number >= 2.0, (blocks.number - 2.0) * full + last, 0.0)

    def _block_seconds(self, rows: FloatArray) -> FloatArray:
        """Return t of the rows of a block."""
        if self._models is not None:
            return self._models.time(rows)
        return rows * self._rate if self._rate is not None else np.zeros_like(rows)


class _Models:
    """The models of a stage, looked up for a whole batch at once; no rows take no time."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._bank, self._nodes = bank(models), np.arange(len(models))[:, np.newaxis]

    def time(self, rows: FloatArray) -> FloatArray:
        """Return the seconds of rows of shape [p, K]."""
        nodes = np.broadcast_to(self._nodes, rows.shape).ravel()
        seconds = self._bank.time(nodes, np.ascontiguousarray(rows).ravel()).reshape(rows.shape)
        return np.where(rows > 0, seconds, 0.0)


_DISK = (
    "read_overhead_s",
    "read_s_per_byte",
    "write_overhead_s",
    "write_s_per_byte",
    "prefetch_overhead_s",
)


def _column(values: Sequence[float]) -> FloatArray:
    return np.array(values, dtype=np.float64)[:, np.newaxis]
