"""Rows that are streamed from disk in blocks become what rows in memory become, bit for bit."""

import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import accumulate, chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpmdask.apps.stencil.block import Block, Update, UpdateFailed, difference, in_turn, iterated
from fpmdask.apps.stencil.neighbours import neighbours
from fpmdask.apps.stencil.program import program, streamed_rows
from fpmdask.apps.stencil.sizes import most_rows, row_nbytes
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.apps.stencil.worker.streamed import Streamed
from fpmdask.apps.stencil.worker.sweeps import Threads
from fpmdask.mheta import Machine
from fpmdask.mheta.instrument import Recorder, fit
from fpmdask.runtime.rows import Rows
from fpmdask.runtime.worker.block_file import SECTOR, BlockFile
from fpmdask.runtime.worker.offers import rows_of
from fpmdask.timing.meter import NoRecorder
from tests.apps.stencil.test_stencil import mixing


@st.composite
def cases(draw):
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(3, 40 if n == 0 else 6)) for n in range(ndim))
    depth = tuple(draw(st.integers(0, 3)) for _ in shape)
    least = max(1, depth[0])
    parts = draw(st.integers(1, min(3, shape[0] // least)))
    rest = shape[0] - parts * least
    more = [draw(st.integers(0, rest // parts)) for _ in range(parts)]
    counts = [least + n for n in more]
    counts[0] += shape[0] - sum(counts)
    return {
        "shape": shape,
        "depth": depth,
        "boundary": tuple(
            draw(st.sampled_from(["reflect", "periodic", "nearest", "none", 3])) for _ in shape
        ),
        "dtypes": draw(st.lists(st.sampled_from(["f4", "f8", "i8"]), min_size=1, max_size=2)),
        "args": draw(st.lists(st.sampled_from(["i4", "f8"]), max_size=2)),
        "spans": [*pairwise(accumulate(counts, initial=0))],
        # rows of a block, 0: in memory
        "blocks": [draw(st.sampled_from([0, 1, 2, 3, 5, 8, 50])) for _ in counts],
        "prefetch": draw(st.booleans()),
        "threads": draw(st.integers(1, 3)),
        "unit": draw(st.sampled_from([1, 4, 7])),
        "iterations": draw(st.integers(1, 5)),
        "every": draw(st.integers(1, 3)),
    }


def spec_of(shape, depth, boundary, dtypes, args=(), iterations=1):
    def rows(dtype):
        return Rows(("key",), (shape[0],), 0, np.dtype(dtype).str, tuple(shape))

    return StencilSpec(
        tuple(map(rows, dtypes)), tuple(map(rows, args)), depth, boundary, iterations
    )


class Team:
    """Parts of which each has some rows, in this process."""

    def __init__(
        self, spec, update, arrays, spans, blocks, *, prefetch=True, threads=1, unit=1, every=1
    ):
        self.spec, self.spans, self.threads = spec, dict(enumerate(spans)), threads
        self.every, self.ahead, self.compacted = every, 0, {}
        self.files = [BlockFile(tempfile.gettempdir()) for _ in blocks]
        self.pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self.parts = [
            Streamed(spec, update, span, rows, file, prefetch=prefetch, band_nbytes=100)
            if rows
            else Block(spec, update, span, every, band_nbytes=100)
            for span, rows, file in zip(spans, blocks, self.files, strict=True)
        ]
        fields = len(spec.fields)
        for part in self.parts:
            part.bring(partial(fill, arrays[:fields]), unit)
            part.bring_args(partial(fill, arrays[fields:]), unit)

    def in_groups(self, make, put, bands):
        if self.pool is None:
            in_turn(make, put, bands)
            return
        for at in range(0, len(bands), self.threads):
            some = bands[at : at + self.threads]
            list(self.pool.map(put, some, list(self.pool.map(make, some))))

    def iterate(self, recorders=None, left=None):
        """Make an iteration, of which so many are left; None: nobody asks for the rows at once."""
        fresh, last = not self.ahead, left == 1
        if fresh:
            self.ahead = min(self.every, left or self.every)
        self.ahead -= 1
        wraps, depth = self.spec.boundary[0] == "periodic", self.spec.depth[0]
        spans, ends = {}, {}
        for n, part in enumerate(self.parts):
            above, below = (depth * is_open for is_open in part.open)
            spans[n] = part.low - self.ahead * above, part.high + self.ahead * below
            if isinstance(part, Block):
                low, high = (part.low, part.high) if fresh else spans[n]
                rest = (0, 0) if fresh else (above, below)
                part.fill(part.fields, low - rest[0], high + rest[1])
        for n in self.spans:
            peers = enumerate(neighbours(self.spans, n, wraps)) if depth and fresh else ()
            ends[n] = [(s, self.parts[p].edge(1 - s)) for s, p in peers if p is not None]
        found = [0.0]
        for n, part in enumerate(self.parts):

            def halos(part=part, ends=ends[n]):
                for side, theirs in ends:
                    for mine, rows in zip(part.neighbours_rows(side), theirs, strict=True):
                        mine[...] = rows

            if isinstance(part, Streamed):
                halos()
                before, recorder = part.edge(0), recorders[n] if recorders else NoRecorder()
                part.sweep(self.in_groups, recorder, found)
                assert before is not part.edge(0)
                continue
            if last:
                self.compacted[n] = part.room()
            waits = halos if fresh and any(part.open) else None
            part.sweep(*spans[n], self.in_groups, halos=waits, compact=last, changes=found)
        return max(found)

    def result(self):
        found = []
        for n in range(len(self.spec.fields)):
            sources = [
                self.compacted.get(which, part.sources())[n]
                for which, part in enumerate(self.parts)
            ]
            found.append(np.concatenate([rows_of(one, 0, one.shape[0]) for one in sources]))
        return found

    def close(self):
        for file in self.files:
            file.close()
        if self.pool is not None:
            self.pool.shutdown()


def fill(arrays, targets, low, high):
    for target, array in zip(targets, arrays, strict=True):
        target[...] = array.take(range(low, high), axis=0, mode="wrap")


@settings(max_examples=50, deadline=None)
@given(cases())
def test_streamed_rows_are_those_in_memory(case):
    random = np.random.default_rng(0)
    shape, boundary, depth = case["shape"], case["boundary"], case["depth"]
    spec = spec_of(shape, depth, boundary, case["dtypes"], case["args"], case["iterations"])
    mix = mixing(depth, boundary)

    def update(blocks, *args):
        made = [mix(block, n + 1) for n, block in enumerate(blocks)]
        for arg in args:
            made[0] = ((made[0] + mix(arg, 1)) % 97).astype(made[0].dtype)
        return (*made[1:], made[0]) if len({x.dtype for x in made}) == 1 else tuple(made)

    updates = Update(update, several=True)
    arrays = [random.integers(0, 9, shape).astype(kind) for kind in case["dtypes"] + case["args"]]
    counts = np.diff(case["spans"], axis=1).ravel()
    team = Team(
        spec,
        updates,
        arrays,
        case["spans"],
        case["blocks"],
        prefetch=case["prefetch"],
        threads=case["threads"],
        unit=case["unit"],
        every=1 if any(case["blocks"]) else min(case["every"], *counts // max(1, depth[0])),
    )
    with closing(team):
        before = arrays[: len(spec.fields)]
        for turn in range(case["iterations"]):
            change = team.iterate(left=case["iterations"] - turn)
            wanted = iterated(spec, updates, arrays, turn + 1)
            for one, other in zip(team.result(), wanted, strict=True):
                np.testing.assert_array_equal(one, other)
            assert change == max(map(difference, wanted, before))
            before = wanted


@pytest.mark.parametrize(("rows", "depth"), [(10, 3), (6, 2), (9, 4)])
def test_parts_of_few_rows_at_ends_without_halo(rows, depth):
    spec = spec_of((rows, 4), (depth, 0), ("none", "none"), ["f8"], iterations=3)
    field = np.random.default_rng(0).random((rows, 4))
    mix = mixing((depth, 0), ("none", "none"))
    update = Update(lambda block: mix(block, 1), several=False)
    half = rows // 2
    with closing(Team(spec, update, [field], [(0, half), (half, rows)], [0, 0])) as team:
        for turn in range(3):
            team.iterate(left=3 - turn)
            wanted = iterated(spec, update, [field], turn + 1)
            np.testing.assert_array_equal(*team.result(), *wanted)


@pytest.mark.parametrize("blocks", [0, 20])
def test_an_update_may_return_a_buffer_of_its_thread(blocks):
    """Threads that are through take no other rows before what they made has been copied."""
    local, threads = threading.local(), Threads(3, threading.Event())

    def update(block):
        made = local.__dict__.setdefault(block.shape, np.empty_like(block))
        made[...] = block + 1
        return made

    spec = spec_of((300, 4), (1, 0), ("reflect", "none"), ["f8"], iterations=4)
    field = np.random.default_rng(0).random((300, 4))
    with (
        closing(threads),
        closing(Team(spec, Update(update, several=False), [field], [(0, 300)], [blocks])) as team,
    ):
        team.in_groups = threads.in_groups
        for _ in range(3):
            team.iterate()
        np.testing.assert_array_equal(*team.result(), field + 1 + 1 + 1)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_update_may_return_what_it_was_given(threads):
    """Rows are replaced in place: what is returned may be a view of what is replaced."""
    fields = [np.random.default_rng(n).random((60, 4)) for n in range(2)]
    spec = spec_of((60, 4), (1, 0), ("periodic", "none"), ["f8", "f8"])
    update = Update(lambda blocks: (blocks[1][2:], blocks[0]), several=True)
    with closing(Team(spec, update, fields, [(0, 60)], [7], threads=threads)) as team:
        for _ in range(3):
            team.iterate()
            fields = [np.roll(fields[1], -1, axis=0), fields[0]]
            for one, other in zip(team.result(), fields, strict=True):
                np.testing.assert_array_equal(one, other)


def test_an_update_that_raises_in_one_thread_ends_the_others():
    spec = spec_of((60, 4), (1, 0), ("reflect", "none"), ["f8"])

    def raising(block):
        if (block > 40).any():
            raise KeyError("seven")
        return block

    rows = np.arange(240.0).reshape(60, 4)
    update = Update(raising, several=False)
    with closing(Team(spec, update, [rows], [(0, 60)], [20], threads=3)) as team:
        for _ in range(2):  # and the parts are usable
            with pytest.raises(UpdateFailed):
                team.iterate()
    assert not [t for t in threading.enumerate() if "fpmdask" in t.name]


def test_a_row_is_read_once_and_written_once_and_the_recorder_is_told():
    """The events are those that MHETA fits a program and a machine from."""
    spec = spec_of((50, 8), (2, 1), ("reflect", "nearest"), ["f8"], ["f4"])
    now = [0.0]

    def update(block, arg):
        now[0] += len(block)  # only computing takes time
        return block

    for prefetch in (False, True):
        rows = np.random.default_rng(0).random((50, 8))
        args = [rows, rows.astype("f4")]
        updating = Update(update, several=False)
        team = Team(spec, updating, args, [(0, 30), (30, 50)], [8, 6], prefetch=prefetch)
        recorders = [Recorder(lambda: now[0]) for _ in range(2)]
        with closing(team):
            team.iterate(recorders)
        traces = {}
        for n, recorder in enumerate(recorders):
            events = traces[n] = recorder.events
            moved = {"read": 0, "write": 0, "issue": 0}
            for event in events:
                if event.kind in moved:
                    moved[event.kind] += event.rows
            own = len(range(*team.spans[n]))
            assert moved["read"] + moved["issue"] == 2 * own  # two arrays
            assert moved["write"] == own
            assert bool(moved["issue"]) is prefetch
            sizes = {e.nbytes for e in events if e.kind == "write"}
            assert max(sizes) <= 10 * row_nbytes(spec, "<f8")
            recorder.at(0)
            with recorder.send(1 - n, 8), recorder.receive(1 - n, 8):
                pass
            traces[n] = recorder.events
        messages = {"messages": [(0, 8, 1, 1, 9), (0, 80, 2, 2, 19)], "prefetch_overhead_s": 0.0}
        benchmarks = {
            n: {**messages, "messages": [(1 - n, *one[1:]) for one in messages["messages"]]}
            for n in range(2)
        }
        found, machine = fit(program(spec, prefetch=prefetch), traces, benchmarks, None)
        assert found.sections[0].stages[0].reads == ("u0[0]", "args[0]")
        assert found.sections[0].stages[0].seconds_per_row[0] > 0
        assert machine.read_s_per_byte == (0.0, 0.0)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_what_is_in_memory_is_what_was_said(data):
    """A part takes no more memory than it was given, and streams only if it must."""
    depth = data.draw(st.integers(0, 3))
    shape = (data.draw(st.integers(20, 200)), data.draw(st.integers(1, 300)))
    spec = spec_of(shape, (depth, 1), ("reflect", "nearest"), ["f8", "f4"], ["i8"])
    prefetch = data.draw(st.booleans())
    memory = float(data.draw(st.integers(1, 2_000_000)))
    (in_core,), (most,) = most_rows(spec, [memory], prefetch=prefetch)
    assert in_core <= most
    rows = shape[0]
    if rows > most:
        return
    count = streamed_rows(spec, rows, memory, prefetch=prefetch)
    assert bool(count) is (rows > in_core)
    if not count:
        block = Block(spec, Update(lambda x: x, several=False), (0, rows))
        arrays = [*block._buffers, *block.args, *chain(*block._strips)]
    else:
        with closing(BlockFile(tempfile.gettempdir())) as file:
            update = Update(lambda x: x, several=False)
            part = Streamed(spec, update, (0, rows), count, file, prefetch=prefetch)
            arrays = [*chain(*part._buffers, *part._halo_rows)]
            arrays += 2 * [*chain(*(some[:2] for some in part._edges))]
            assert len(part.blocks) == -(-rows // count)
    sectors = 2 * SECTOR * 2 * 3  # where rows begin in a buffer
    assert sum(array.nbytes for array in arrays) <= memory + sectors
    assert Machine(1, [int(memory)]).figures("memory_bytes") == memory
