"""C += A·B in place, against NumPy."""

import threading
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from fpmdask.apps.matmul.blas import gemm_accumulate


def matrix(rng, shape, dtype):
    values = rng.integers(-4, 5, shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.integers(-4, 5, shape)
    return values.astype(dtype)


def laid_out(x, layout):
    """Return the same matrix with other strides."""
    if layout == "F":
        return np.asfortranarray(x)
    if layout == "columns":
        big = np.full((x.shape[0] + 2, x.shape[1] + 3), 99, x.dtype)
        view = big[1:-1, 2:-1]
    elif layout == "strided":
        view = np.full((2 * x.shape[0], 2 * x.shape[1]), 99, x.dtype)[::2, ::2]
    elif layout == "reversed":
        view = np.full(x.shape, 99, x.dtype)[::-1, ::-1]
    else:
        return x
    view[...] = x
    return view


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16", ">f8", "i4", "u1", "f2", "g"])
@pytest.mark.parametrize("shape", [(5, 7, 3), (1, 1, 1), (1, 5, 1), (4, 1, 6), (6, 3, 1)])
def test_small_integers_are_exact_in_every_layout(dtype, shape):
    rng = np.random.default_rng(1)
    m, k, n = shape
    layouts = ("C", "F", "columns", "strided", "reversed")
    for which in range(len(layouts) ** 2):
        a = laid_out(matrix(rng, (m, k), dtype), layouts[which % 5])
        b = laid_out(matrix(rng, (k, n), dtype), layouts[which // 5])
        c = laid_out(matrix(rng, (m, n), dtype), layouts[(which + which // 5) % 5])
        for beta in (1, 0):
            wanted = a @ b + np.asarray(beta, c.dtype) * c
            gemm_accumulate(a, b, c, beta=beta)
            np.testing.assert_array_equal(c, wanted)


def test_neighbours_of_a_column_slice_stay():
    whole = np.full((4, 9), 7.0)
    gemm_accumulate(np.ones((4, 2)), np.ones((2, 3)), whole[:, 3:6])
    assert (whole[:, :3] == 7).all()
    assert (whole[:, 6:] == 7).all()
    assert (whole[:, 3:6] == 9).all()


@pytest.mark.parametrize("beta", [0.5, 2, 0.5j])
def test_beta_scales_what_was_there(beta):
    c = np.ones((2, 2), complex)
    gemm_accumulate(np.ones((2, 1), complex), np.ones((1, 2), complex), c, beta=beta)
    np.testing.assert_array_equal(c, np.full((2, 2), 1 + beta))


def test_beta_zero_does_not_read_c():
    for dtype in ("f8", "f2"):
        c = np.full((2, 2), np.nan, dtype)
        gemm_accumulate(np.ones((2, 2), dtype), np.ones((2, 2), dtype), c, beta=0)
        assert (c == 2).all()


@pytest.mark.parametrize("dtype", ["f8", "i8"])
def test_empty_dimensions(dtype):
    c = np.full((2, 3), 4, dtype)
    gemm_accumulate(np.empty((2, 0), dtype), np.empty((0, 3), dtype), c)
    assert (c == 4).all()
    gemm_accumulate(np.empty((2, 0), dtype), np.empty((0, 3), dtype), c, beta=0)
    assert (c == 0).all()
    for m, n in ((0, 3), (2, 0)):
        gemm_accumulate(np.ones((m, 2), dtype), np.ones((2, n), dtype), np.empty((m, n), dtype))


def test_operands_of_other_dtypes_are_promoted():
    c = np.zeros((2, 2))
    gemm_accumulate(np.ones((2, 3), "i4"), np.ones((3, 2)), c)
    assert (c == 3).all()
    flags = np.zeros((2, 2), bool)
    gemm_accumulate(np.eye(2, dtype=bool), np.eye(2, dtype=bool), flags)
    np.testing.assert_array_equal(flags, np.eye(2, dtype=bool))


def test_halves_may_be_added_to_single_precision():
    c = np.full((2, 2), 4096, "f4")
    gemm_accumulate(np.ones((2, 3), "f2"), np.ones((3, 2), "f2"), c)
    assert (c == 4099).all()  # no half is


def test_operands_may_overlap_the_result():
    for dtype in ("f8", "i8"):
        c = np.arange(9).reshape(3, 3).astype(dtype)
        wanted = c @ c.T + c
        gemm_accumulate(c, c.T, c)
        np.testing.assert_array_equal(c, wanted)


def test_rows_over_threads():
    rng = np.random.default_rng(2)
    a, b = matrix(rng, (37, 5), "i8"), matrix(rng, (5, 11), "i8")
    c = np.zeros((37, 11), "i8")
    gemm_accumulate(a, b, c, threads=4)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"a": np.ones(3)}, ValueError, "1, 2, 2 axes"),
        ({"b": np.ones((4, 2))}, ValueError, r"\(4, 2\)"),
        ({"c": np.ones((2, 3))}, ValueError, "cannot be added"),
        ({"a": np.ones((2, 3), object)}, TypeError, "a has dtype object"),
        ({"c": np.ones((2, 2), "f4")}, TypeError, "c has dtype float32"),
        ({"beta": 1j}, TypeError, "cannot hold"),
        ({"threads": 0}, ValueError, "at least 1"),
        ({"c": np.broadcast_to(np.float64(0), (2, 2))}, ValueError, "read-only"),
    ],
)
def test_bad_input_is_refused(change, error, says):
    given = {"a": np.ones((2, 3)), "b": np.ones((3, 2)), "c": np.zeros((2, 2))} | change
    with pytest.raises(error, match=says):
        gemm_accumulate(given.pop("a"), given.pop("b"), given.pop("c"), **given)


def test_integers_take_no_fractional_beta():
    ones = np.ones((2, 2), int)
    with pytest.raises(TypeError, match="must be 0 or 1"):
        gemm_accumulate(ones, ones, ones.copy(), beta=0.5)


def test_other_threads_run_during_a_product():
    """The counting thread could not count in one foreign call that kept the GIL."""
    n = 1200
    a, b, c = np.ones((n, n)), np.ones((n, n)), np.zeros((n, n))
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = counted[0]
        gemm_accumulate(a, b, c)
        during = counted[0] - before
    finally:
        stop.set()
        thread.join()
    assert during >= 3


def test_threadpoolctl_limits_every_blas():
    with threadpool_limits(1, "blas"):
        pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
        assert pools
        assert all(pool["num_threads"] == 1 for pool in pools)
