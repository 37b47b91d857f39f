"""What MHETA is told of a stencil: the arrays that really take memory, the messages really sent."""

import math
from itertools import chain

import pytest

from fpmdask.apps.stencil.block import Block, Update
from fpmdask.apps.stencil.neighbours import neighbours, spans_of
from fpmdask.apps.stencil.program import program
from fpmdask.apps.stencil.sizes import Sizes, fits_with_room, most_rows, row_nbytes
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.mheta import Machine, capacity
from fpmdask.mheta.blocks import Memory
from fpmdask.runtime.rows import Rows


def spec(shape, depth, boundary, fields=("<f8",), args=()):
    def rows(dtype):
        return Rows(("key",), (shape[0],), 0, dtype, shape)

    return StencilSpec(tuple(map(rows, fields)), tuple(map(rows, args)), depth, boundary, 10)


CASES = [
    spec((90, 40), (1, 1), ("reflect", "reflect")),
    spec((90, 40), (2, 3), ("none", "none"), args=("<f4",)),
    spec((90, 4, 5), (1, 2, 0), ("periodic", "nearest", 0), fields=("<f8", "<f4"), args=("<i2",)),
    spec((90,), (4,), (1.5,)),
    spec((90, 7), (0, 1), ("reflect", "periodic")),
]


@pytest.mark.parametrize("given", CASES)
@pytest.mark.parametrize("prefetch", [True, False])
def test_rows_in_core_take_the_memory_that_they_take(given, prefetch):
    found = program(given, prefetch=prefetch)
    span = 30, 60
    block = Block(given, Update(lambda *_: None, several=False), span)
    arrays = [*block._buffers, *block.args, *chain(*block._strips)]
    edges = [rows for side in range(2) if block.open[side] for rows in block.edge(side)]
    taken = sum(array.nbytes for array in (*arrays, *edges, *edges))  # of two iterations
    rows = span[1] - span[0]
    assert sum(array.row_bytes for array in found.arrays) * rows <= taken
    assert taken <= sum(array.row_bytes for array in found.arrays) * rows + found.fixed_bytes
    (fits,) = capacity(found, Machine(1, [taken]))
    assert fits <= rows


@pytest.mark.parametrize("given", CASES)
def test_a_message_has_the_halo_of_all_fields(given):
    found = program(given).sections[0].communication
    spans = spans_of({"a": 30, "b": 60})
    block = Block(given, Update(lambda *_: None, several=False), spans["b"])
    depth = given.depth[0]
    halo = block.rows(block.fields, block.low, block.low + depth)
    assert found.message_bytes == sum(rows.nbytes for rows in halo)
    assert found.pattern == ("nearest_neighbour" if depth else "none")
    if depth and given.boundary[0] != "periodic":
        assert neighbours(spans, "b", wraps=False) == ("a", None)


def test_a_stage_reads_what_an_update_reads_and_writes_the_fields():
    given = CASES[2]
    found = program(given, prefetch=False, checks=True)
    halos, norm = found.sections
    (stage,) = halos.stages
    assert list(stage.reads) == ["u0[0]", "u0[1]", "args[0]"]
    assert list(stage.writes) == ["u0[0]", "u0[1]"]
    assert not stage.prefetch
    assert program(given).sections[0].stages[0].prefetch
    assert norm.communication.pattern == "reduction_tree"
    sizes = {array.name: array.row_bytes for array in found.arrays}
    assert sizes["u0[1]"] == row_nbytes(given, "<f4") == 4 * (4 + 4) * 5
    # two buffers
    assert Sizes.of(given, prefetch=True).block == 2 * Sizes.of(given, prefetch=False).block


@pytest.mark.parametrize("given", CASES)
@pytest.mark.parametrize("prefetch", [True, False])
def test_what_is_known_of_memory_without_mheta_is_what_mheta_says(given, prefetch):
    found = program(given, prefetch=prefetch)
    least = found.fixed_bytes
    for nbytes in (0, max(0, least - 1), least, least + 100, 3 * least + 5000, 10**6, math.inf):
        limit = None if math.isinf(nbytes) else nbytes
        memory = Memory.of(found, Machine(1, [limit]))
        in_core, most = most_rows(given, [nbytes], prefetch=prefetch, stored=True)
        assert in_core == [memory.in_core[0, 0]]
        assert most == [max(0.0, memory.most[0, 0])]
        if 0 < in_core[0] < math.inf:
            rows = int(in_core[0])
            assert not fits_with_room(given, [nbytes], [rows + 1], prefetch=prefetch)
            assert fits_with_room(given, [1.2 * nbytes + 1], [rows], prefetch=prefetch)
            assert fits_with_room(given, [0], [0], prefetch=prefetch)
