"""The updates that are ready to use: their results, and where these are in memory."""

import numpy as np
import pytest

from fpmdask.apps.stencil import gray_scott, heat, jacobi
from fpmdask.apps.stencil.updates import LINE


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c16"])
@pytest.mark.parametrize("shape", [(3, 3), (7, 12), (2, 9), (5, 6, 7), (9,)])
def test_results_are_those_of_plain_arithmetic(shape, dtype):
    block = np.random.default_rng(0).random(shape).astype(dtype)
    inner = tuple(slice(1, n - 1) for n in shape)
    wanted = sum(
        np.roll(block, shift, axis)[inner] for axis in range(len(shape)) for shift in (1, -1)
    )
    tolerance = 10 * np.finfo(dtype).eps
    np.testing.assert_allclose(jacobi(block), wanted / (2 * len(shape)), rtol=tolerance)
    alpha = 0.1
    stepped = (1 - 2 * len(shape) * alpha) * block[inner] + alpha * wanted
    np.testing.assert_allclose(heat(alpha)(block), stepped, rtol=tolerance)
    assert jacobi(block).dtype == heat(alpha)(block).dtype == block.dtype


@pytest.mark.parametrize("columns", range(3, 12))
def test_results_begin_with_a_cache_line(columns):
    block = np.random.default_rng(columns).random((5, columns))
    made = [jacobi(block), heat(0.1)(block), *gray_scott()((block, block))]
    assert {one.ctypes.data % LINE for one in made} == {0}
    assert all(one.flags.writeable and one.flags.c_contiguous for one in made)


def test_arrays_of_other_libraries_keep_their_own_memory():
    class Other:
        """What an array of another library has of NumPy's interface."""

        def __init__(self, values):
            self.values, self.shape, self.ndim = values, values.shape, values.ndim

        def __getitem__(self, key):
            return Other(self.values[key])

        def __add__(self, other):
            return Other(self.values + other.values)

        def __iadd__(self, other):
            return Other(self.values + other.values)

        def __imul__(self, factor):
            return Other(self.values * factor)

    block = np.random.default_rng(0).random((4, 6))
    found = jacobi(Other(block))
    assert isinstance(found, Other)
    np.testing.assert_allclose(found.values, jacobi(block))


def test_masks_objects_and_the_order_of_axes_are_kept():
    values = np.random.default_rng(0).random((5, 7))
    masked = jacobi(np.ma.array(values, mask=values > 0.9))
    assert isinstance(masked, np.ma.MaskedArray)
    assert masked.mask.any()
    exact = jacobi(values.astype(object))
    assert exact.dtype == object
    np.testing.assert_allclose(exact.astype(float), jacobi(values))
    columns = jacobi(np.asfortranarray(values))
    assert columns.flags.f_contiguous
    np.testing.assert_allclose(columns, jacobi(values))
