"""A worker's share of a product: receive panels while multiplying, keep the part of C."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from fpmdask.apps.matmul.kernel import NAME, panel_update
from fpmdask.apps.matmul.plan import MatmulSpec, Tile
from fpmdask.apps.matmul.spec import HELP, MULTIPLY
from fpmdask.apps.matmul.worker.fetch import ChunksMissing, Fetcher, Panel
from fpmdask.apps.matmul.worker.relay import Relaying
from fpmdask.errors import PartitionError, RunCancelledError
from fpmdask.runtime.worker.side import RunSpace, WorkerSide
from fpmdask.runtime.worker.steps import Commands, step

# A worker of one thread whose BLAS gets less of a core than this sends before it multiplies, for so
# long before each band at most: with half of its CPU, what others wait for takes twice as long.
LITTLE_CPU, GIVE_WAY_SECONDS = 0.75, 0.1

# A pace is that of the last panels that took so long: quotas of CPU come in periods of 0.1 s.
PACE_SECONDS = 0.3


@dataclass(frozen=True)
class Part:
    """A tile of C as the chunks that it will become, each with memory of its own.

    Parameters
    ----------
    cells
        (tile in elements of C, its array), covering the part's tile.
    transposed
        Whether the chunks are those of its transpose.
    """

    cells: tuple[tuple[Tile, np.ndarray], ...]
    transposed: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all cells."""
        return sum(cell.nbytes for _, cell in self.cells)

    def rounded(self, dtype: np.dtype[Any]) -> Part:
        """Return the part in the dtype of C, itself where that is what it was summed up in."""
        cells = tuple((tile, cell.astype(dtype, copy=False)) for tile, cell in self.cells)
        return replace(self, cells=cells)

    def within(self, tile: Tile) -> list[tuple[Tile, np.ndarray]]:
        """Return the pieces of cells that lie in a tile, as views."""
        found = []
        for at, cell in self.cells:
            row0, row1 = max(at.row0, tile.row0), min(at.row1, tile.row1)
            column0, column1 = max(at.column0, tile.column0), min(at.column1, tile.column1)
            if row0 < row1 and column0 < column1:
                rows = slice(row0 - at.row0, row1 - at.row0)
                columns = slice(column0 - at.column0, column1 - at.column0)
                found.append((Tile(row0, column0, row1, column1), cell[rows, columns]))
        return found

    def chunk(self, bounds: Sequence[int]) -> np.ndarray:
        """Return the elements ``(row0, row1, column0, column1)`` of the part's C as a chunk.

        The cell itself without a copy where it is the whole chunk. Cells are cut or put together
        only where parts were shared out anew after a loss.
        """
        found = self._elements(Tile.of(bounds))
        return found.T if self.transposed else found

    def _elements(self, tile: Tile) -> np.ndarray:
        for at, cell in self.cells:
            if at == tile:
                return cell
        found = self.within(tile)
        if sum(at.area for at, _ in found) != tile.area:
            raise KeyError(f"no cells hold {tile.bounds}")
        chunk = np.empty((tile.height, tile.width), found[0][1].dtype)
        for at, piece in found:
            row, column = at.row0 - tile.row0, at.column0 - tile.column0
            chunk[row : row + at.height, column : column + at.width] = piece
        return chunk


@dataclass
class Given:
    """Lines of a part that another worker multiplies by the panels from `first` on.

    `result` says where the sum is: a worker and its channel, ``()`` where there is none and the
    panels are multiplied here after all, None as long as the coordinator has not told. So many rows
    of the sum are `merged` already.
    """

    number: int
    tile: Tile
    first: int
    result: tuple[Any, ...] | None = None
    merged: int = 0


@dataclass
class Progress:
    """A share that is not finished: C so far, and what has become of it."""

    part: Part
    tile: Tile  # of it what is computed here
    panels_done: int = 0
    offered: list[Given] = field(default_factory=list)  # not released yet
    given: list[Given] = field(default_factory=list)  # released, and not in C yet
    work: int = 0  # multiplications
    compute_seconds: float = 0.0
    wait_seconds: float = 0.0
    gave_way_seconds: float = 0.0  # of those of computing
    nbytes_received: int = 0
    seconds: float = 0.0
    cpu_seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("multiply", "computing", "receive", "send", "process"), 0.0
        )
    )  # "computing": of the whole process while panels were multiplied, without giving way

    @property
    def lacks_cpu(self) -> bool:
        """Whether the thread that multiplies got far less than a core, by what it did so far."""
        able = self.compute_seconds - self.gave_way_seconds
        return self.cpu_seconds["multiply"] < LITTLE_CPU * able

    def facts(self) -> dict[str, Any]:
        """Return what the report says of it."""
        return {
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "work": self.work,
            "compute_seconds": self.compute_seconds,
            "wait_seconds": self.wait_seconds,
            "gave_way_seconds": self.gave_way_seconds,
            "nbytes_received": self.nbytes_received,
            "nbytes": int(self.part.nbytes),
        }


def multiply_share(order: Mapping[str, Any]) -> None:
    """Task: compute the tile ``order["tile"]`` of C and keep it as part ``order["part"]``.

    It ends early where others still multiply lines of the tile, "waiting" for these; called again,
    it goes on. The worker may help others meanwhile.
    """
    step(MULTIPLY, order, lambda side, space: _answer(_multiplied, side, space, order))


def help_share(order: Mapping[str, Any]) -> None:
    """Task: multiply ``order["tile"]`` by ``order["panels"]`` for another worker's part.

    The sum is offered under `offer` for as long as the run lasts.
    """
    step(HELP, order, lambda side, space: _answer(_helped, side, space, order))


def offer(number: int) -> tuple[str, int]:
    """Return the key of a help's sum."""
    return "fpmdask-help", number


def _answer(
    work: Any, side: WorkerSide, space: RunSpace, order: Mapping[str, Any]
) -> Mapping[str, Any]:
    began, cpu, sent = time.perf_counter(), time.process_time(), _sent_cpu(side)
    try:
        spec = MatmulSpec.from_json(order["product"])
        with (
            side.blas_threads(),
            Fetcher(space, spec, order) as fetcher,
            Relaying(space, spec, order.get("relay", ()), order["panels"]) as relaying,
        ):
            progress: Progress = work(_Update(side, space, order, fetcher))
    except ChunksMissing as missing:
        return {"missing": missing.keys}
    except PartitionError as unusable:
        return {"unusable": str(unusable)}
    progress.seconds += time.perf_counter() - began
    progress.cpu_seconds["receive"] += relaying.cpu_seconds
    progress.nbytes_received += relaying.nbytes_received
    progress.cpu_seconds["send"] += _sent_cpu(side) - sent
    progress.cpu_seconds["process"] += time.process_time() - cpu
    if progress.given:
        return {"waiting": [given.number for given in progress.given]}
    return progress.facts()


def _sent_cpu(side: WorkerSide) -> float:
    return 0.0 if side.channels is None else side.channels.cpu_seconds


def _multiplied(update: _Update) -> Progress:
    """Multiply a part; once all is there that others do of it, keep it."""
    space, order = update.space, update.order
    name = order["part"]
    progress = space.partial.get(name)
    if progress is None:
        progress = space.partial[name] = Progress(update.allocated(), Tile.of(order["tile"]))
    heard = _Notes(update, progress)
    update.panels(progress, heard.give, heard.reached)
    heard.reached(len(order["panels"]))
    for number, where in order.get("taken", ()):
        heard.take(number, where)
    if not heard.merged():
        return progress
    progress.part = progress.part.rounded(update.spec.dtype)
    space.parts[name] = progress.part
    space.partial.pop(name, None)  # the run may be over just now
    return progress


def _helped(update: _Update) -> Progress:
    """Sum up for another part, and offer the sum."""
    tile, number = Tile.of(update.order["tile"]), update.order["help"]
    memory = np.empty((tile.height, tile.width), update.spec.sums)
    progress = Progress(Part(((tile, memory),)), tile)
    commands = Commands(update.side, update.space, HELP, update.order, f"help {number}")

    def go_on(index: int) -> None:
        _stop_if(commands.poll() is not None)

    update.panels(progress, go_on, _tell_nobody)
    go_on(0)
    update.space.exchange.offer(offer(number), memory)
    return progress


class _Update:
    """Multiplies panels into parts."""

    def __init__(
        self, side: WorkerSide, space: RunSpace, order: Mapping[str, Any], fetcher: Fetcher
    ) -> None:
        self.side, self.space, self.order, self.fetcher = side, space, order, fetcher
        self.spec, self.tuning = fetcher.spec, space.tuning.matmul
        self.threads = side.worker.state.nthreads
        self.may_give_way = self.threads == 1  # with more there is a core left to send

    def panels(self, progress: Progress, give: Any, reached: Any) -> None:
        """Update ``progress.tile``, which ``give`` may make smaller, with the panels left."""
        count = len(self.order["panels"])
        ahead = None
        if progress.panels_done < count:
            ahead = self.fetcher.start(progress.panels_done, progress.tile)
        while ahead is not None:
            panel = _arrived(ahead, progress)
            reached(progress.panels_done)
            give(progress.panels_done)
            # Only now the next one: so never more than two panels are here.
            following = progress.panels_done + 1
            ahead = self.fetcher.start(following, progress.tile) if following < count else None
            self.add(progress, panel, progress.tile, beta=1.0 if progress.panels_done else 0.0)
            progress.panels_done = following

    def add(self, progress: Progress, panel: Panel, tile: Tile, beta: float) -> None:
        """C += A_panel · B_panel in a tile; with ``beta`` 0 overwriting."""
        check = partial(self._before_band, progress, self.may_give_way and progress.lacks_cpu)
        began, cpu, process = time.perf_counter(), time.thread_time(), time.process_time()
        for at, cell in progress.part.within(tile):
            a, b = panel.of(at)
            panel_update(
                a, b, cell, beta=beta, threads=self.threads, check=check, tuning=self.tuning
            )
        progress.compute_seconds += time.perf_counter() - began
        progress.cpu_seconds["multiply"] += time.thread_time() - cpu
        progress.cpu_seconds["computing"] += time.process_time() - process
        progress.cpu_seconds["receive"] += panel.cpu_seconds
        progress.work += tile.area * panel.a.shape[1]
        progress.nbytes_received += panel.nbytes_received

    def _before_band(self, progress: Progress, gives_way: bool) -> None:
        """Let others have first what is being sent to them; stop if the run is cancelled."""
        if gives_way and self.side.channels is not None:
            began, process = time.perf_counter(), time.process_time()
            self.side.channels.give_way(GIVE_WAY_SECONDS)
            progress.gave_way_seconds += time.perf_counter() - began
            progress.cpu_seconds["computing"] -= time.process_time() - process
        _stop_if(self.space.cancelled.is_set())

    def allocated(self) -> Part:
        """Return the memory of a share, cut where the chunks of C will be.

        One cell takes the memory that the timed kernel has touched already; the rest of that is
        given back.
        """
        whole, scratch = Tile.of(self.order["tile"]), self.space.scratch
        rows, columns = (
            [low, *(cut for cut in cuts if low < cut < high), high]
            for (low, high), cuts in zip(
                ((whole.row0, whole.row1), (whole.column0, whole.column1)),
                self.order["cuts"],
                strict=True,
            )
        )
        cells = [Tile(r0, c0, r1, c1) for r0, r1 in pairwise(rows) for c0, c1 in pairwise(columns)]
        tiles = [cell for cell in cells if whole.holds(cell)]
        largest = max(tiles, key=lambda tile: tile.area)
        shape, dtype = (largest.height, largest.width), self.spec.sums
        touched = scratch.hand_over(f"{NAME}.c", shape, dtype)
        scratch.clear()
        return Part(
            tuple(
                (t, touched if t is largest else np.empty((t.height, t.width), dtype))
                for t in tiles
            ),
            self.spec.transposed,
        )


class _Notes:
    """What the coordinator tells a share while it is computed, and hears from it."""

    def __init__(self, update: _Update, progress: Progress) -> None:
        self.update, self.progress = update, progress
        side, space, order = update.side, update.space, update.order
        to, part = f"part {order['part']}", order["part"]
        self.commands = Commands(side, space, MULTIPLY, order, to, part=part)
        self.news_seconds = update.tuning.news_seconds
        self.told = -self.news_seconds
        self.marks: list[tuple[float, int]] = []  # (when, work by then) of panels

    def reached(self, index: int) -> None:
        """Tell the coordinator that panel ``index`` is begun, and the pace of the last ones."""
        now, work = time.perf_counter(), self.progress.work
        self.marks.append((now, work))
        last = index == len(self.update.order["panels"])
        if now - self.told >= self.news_seconds or last:
            self.told = now
            earlier = [mark for mark in self.marks if now - mark[0] >= PACE_SECONDS]
            at, before = earlier[-1] if earlier else self.marks[0]
            pace = (work - before) / (now - at) if now > at else 0.0
            self.commands.tell(reached=index, pace=pace)

    def give(self, index: int) -> None:
        """Release the lines that others multiply from panel ``index`` on."""
        self._listen()
        progress = self.progress
        for given in [given for given in progress.offered if given.first <= index]:
            progress.offered.remove(given)
            kept = progress.tile.without(given.tile)
            if kept is None or given.first < index:
                self.commands.tell(refused=given.number)
            else:
                progress.tile = kept
                progress.given.append(given)

    def merged(self) -> bool:
        """Add what others have summed up by now; tell whether nothing is left to be added."""
        given = self.progress.given
        self._listen()
        while known := [lines for lines in given if lines.result is not None]:
            for lines in known:
                self._merge(lines)
                given.remove(lines)
            self._listen()
        return not given

    def take(self, number: int, where: Sequence[Any]) -> None:
        """Take note of where a sum is, said more than once; what has failed is not tried again."""
        for given in [*self.progress.offered, *self.progress.given]:
            if given.number == number and given.result is None:
                given.result = tuple(where)

    def _merge(self, given: Given) -> None:
        """Add what another worker has summed up, or multiply here where it is gone."""
        update, progress = self.update, self.progress
        if given.result:
            waiting = time.perf_counter()

            def add(at: Tile, band: np.ndarray) -> None:
                for piece, cell in progress.part.within(at):
                    rows = slice(piece.row0 - at.row0, piece.row1 - at.row0)
                    columns = slice(piece.column0 - at.column0, piece.column1 - at.column0)
                    np.add(cell, band[rows, columns], out=cell)
                progress.nbytes_received += band.nbytes
                given.merged = at.row1 - given.tile.row0

            try:
                peer, address = given.result
                update.fetcher.take(offer(given.number), given.tile, peer, address, add)
            except ChunksMissing:
                given.result = ()
            progress.wait_seconds += time.perf_counter() - waiting
        if not given.result:
            tile = given.tile
            rest = Tile(tile.row0 + given.merged, tile.column0, tile.row1, tile.column1)
            count = len(update.order["panels"])
            ahead = update.fetcher.start(given.first, rest) if given.first < count else None
            while ahead is not None:
                panel = _arrived(ahead, progress)
                following = given.first + 1
                ahead = update.fetcher.start(following, rest) if following < count else None
                update.add(progress, panel, rest, beta=1.0)
                given.first = following
                self.reached(following)

    def _listen(self) -> None:
        while (command := self.commands.poll()) is not None:
            if "give" in command:
                given = Given(command["give"], Tile.of(command["tile"]), command["first"])
                self.progress.offered.append(given)
            else:
                self.take(command["take"], command["from"])


def _arrived(ahead: Future[Panel], progress: Progress) -> Panel:
    """Wait for a panel, also if it does not come, on the share's account."""
    waiting = time.perf_counter()
    try:
        return ahead.result()
    finally:
        progress.wait_seconds += time.perf_counter() - waiting


def _tell_nobody(index: int) -> None:
    """Nobody counts on when a help is done."""


def _stop_if(cancelled: bool) -> None:
    if cancelled:
        raise RunCancelledError("this share is not wanted any more")
