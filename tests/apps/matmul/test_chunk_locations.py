"""Keys of chunks are made once, and places are packed for the chunks that are asked for."""

import numpy as np

from fpmdask.apps.matmul.chunk_locations import ChunkLocations
from fpmdask.apps.matmul.spec import MatmulSpec


def spec_of(chunks, names=("a", "b")):
    axis = (1,) * chunks
    return MatmulSpec((chunks,) * 3, np.dtype("f8"), (axis, axis), (axis, axis), *names)


def test_keys_and_their_numbers_are_made_once():
    made = []

    class Counted(MatmulSpec):
        def key(self, name, block):
            made.append(block)
            return super().key(name, block)

    spec = Counted(**vars(spec_of(10)))
    places = ChunkLocations({key: ["x"] for key in spec.keys[:3]}, {})
    for _ in range(5):
        assert ChunkLocations.unpacked(spec, places.packed(spec)) == places
    assert len(made) == len(spec.keys) == 200


def test_the_packed_places_of_a_few_chunks_do_not_grow_with_the_matrices():
    small, large = spec_of(3), spec_of(60)
    places = {("a", 0, 1): ["x", "y"], ("b", 2, 0): ["y"]}
    where = ChunkLocations(places, {"x": ("::1", 80)}, {("b", 2, 0): "x"})
    assert ChunkLocations.unpacked(large, where.packed(large)) == where
    assert len(where.packed(large)) <= len(where.packed(small)) + 8


def test_places_of_a_product_with_itself():
    spec = spec_of(4, ("a", "a"))
    where = ChunkLocations({key: ["x"] for key in spec.keys}, {})
    assert ChunkLocations.unpacked(spec, where.packed(spec)) == where
