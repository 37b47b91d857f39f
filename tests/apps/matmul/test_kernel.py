"""The panel update as a kernel."""

from itertools import count

import numpy as np
import pytest

from fpmdask.apps.matmul.kernel import PanelUpdate, panel_depth, panel_update
from fpmdask.errors import KernelError
from fpmdask.timing import Deadline, DeadlinePassed, Interruptible, Kernel, WorkerContext, measure


def test_it_is_a_kernel_that_can_be_interrupted():
    kernel = PanelUpdate(WorkerContext(), width=4, depth=2)
    assert isinstance(kernel, Kernel)
    assert isinstance(kernel, Interruptible)
    assert kernel.parameters == {"width": 4, "depth": 2, "dtype": "float64"}
    assert kernel.nbytes(3) == 8 * (3 * (4 + 2) + 2 * 4)
    assert PanelUpdate(WorkerContext(), width=4, depth=2, dtype="c8").complexity(3) == 8 * 24
    assert measure(kernel, 5, clock=count().__next__).seconds == 1


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16", "i4", "?"])
def test_one_run_adds_the_product(dtype):
    context = WorkerContext()
    kernel = PanelUpdate(context, width=40, depth=7, dtype=dtype)
    kernel.setup(30)
    kernel.run()
    sums = np.dtype("f4" if dtype == "f2" else dtype)
    a, b, c = (
        context.scratch.take(f"matmul.panel.{which}", shape, kind)
        for which, shape, kind in (
            ("a", (30, 7), dtype),
            ("b", (7, 40), dtype),
            ("c", (30, 40), sums),
        )
    )
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-3)
    assert np.isfinite(c).all()
    assert (c != 0).any()


def test_only_new_memory_is_filled():
    context = WorkerContext()
    kernel = PanelUpdate(context, width=10, depth=3)
    kernel.setup(20)
    kernel.run()
    again = PanelUpdate(context, width=10, depth=3)
    again.setup(20)
    assert context.scratch.take("matmul.panel.c", (20, 10), "f8").any()
    again.setup(400)  # the buffer grew: a new one, filled from its start
    assert not context.scratch.take("matmul.panel.c", (400, 10), "f8").any()
    again.setup(20)
    other = PanelUpdate(context, width=10, depth=3, dtype="f4")
    other.setup(20)
    assert not context.scratch.take("matmul.panel.c", (20, 10), "f4").any()
    context.scratch.clear()
    again.setup(20)
    assert not context.scratch.take("matmul.panel.c", (20, 10), "f8").any()


def test_the_values_stay_bounded():
    kernel = PanelUpdate(WorkerContext(), width=3, depth=5, dtype="f2")
    kernel.setup(4)
    for _ in range(3000):
        kernel.run()
    assert np.isfinite(kernel.context.scratch.take("matmul.panel.c", (4, 3), "f4")).all()


def test_the_deadline_is_seen_in_setup_and_between_bands():
    now = [0.0]

    def clock():
        now[0] += 1.0
        return now[0]

    kernel = PanelUpdate(WorkerContext(), width=1, depth=1)
    kernel.deadline = Deadline(1.5, clock)
    with pytest.raises(DeadlinePassed):
        kernel.setup(10)
    kernel.deadline = None
    kernel.setup(5000)
    kernel.deadline = Deadline(3.5, clock)
    with pytest.raises(DeadlinePassed):
        kernel.run()
    kernel.teardown()
    with pytest.raises(KernelError, match="before setup"):
        kernel.run()


@pytest.mark.parametrize("rows", [0, 1, 1024, 1025, 2500])
@pytest.mark.parametrize("dtype", ["f8", "i8"])
def test_bands_cover_every_row(rows, dtype):
    a = np.arange(rows * 2).reshape(rows, 2).astype(dtype)
    b = np.arange(6).reshape(2, 3).astype(dtype)
    c = np.ones((rows, 3), dtype)
    looks = []
    panel_update(a, b, c, check=lambda: looks.append(1))
    np.testing.assert_array_equal(c, a @ b + 1)
    assert looks


def test_the_depth_follows_the_cost():
    assert panel_depth(1) == 1
    assert panel_depth(20_000, cost=0.05, passes=10) == 96
    assert panel_depth(20_000, cost=0.1, passes=10) == 200
    assert panel_depth(10**7) == 256
    for bad in ({"inner": 0}, {"inner": 9, "cost": float("nan")}, {"inner": 9, "passes": 0}):
        with pytest.raises(KernelError, match="no depth"):
            panel_depth(**bad)


@pytest.mark.parametrize("bad", [{"width": 0, "depth": 1}, {"width": 1, "depth": -1}])
def test_bad_sizes_are_refused(bad):
    with pytest.raises(KernelError, match="at least 1"):
        PanelUpdate(WorkerContext(), **bad)


def test_objects_are_refused():
    with pytest.raises(KernelError, match="numeric"):
        PanelUpdate(WorkerContext(), width=1, depth=1, dtype=object)
