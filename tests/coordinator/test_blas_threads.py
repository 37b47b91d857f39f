"""The threads of BLAS, shared by all tasks of a process."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from fpmdask.runtime.worker.blas_threads import BlasThreads


def threads() -> set[int]:
    np.ones(1) @ np.ones(1)
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def four():
    with threadpool_limits(4, "blas"):
        yield


def test_blas_is_limited_within_and_gets_back_what_it_had():
    blas = BlasThreads()
    with blas.limited(1):
        assert threads() == {1}
    assert threads() == {4}


def test_tasks_that_overlap_in_any_order_leave_what_was_there_before():
    blas = BlasThreads()
    first, second = blas.limited(1), blas.limited(2)
    first.__enter__()
    second.__enter__()
    assert threads() == {2}
    first.__exit__(None, None, None)
    assert threads() == {2}
    second.__exit__(None, None, None)
    assert threads() == {4}


def test_a_task_that_raises_gives_the_threads_back():
    blas = BlasThreads()
    with pytest.raises(ZeroDivisionError), blas.limited(1):
        _ = 1 / 0
    assert threads() == {4}


def test_a_library_that_came_with_a_module_is_limited_too(monkeypatch: pytest.MonkeyPatch):
    found = []
    import fpmdask.runtime.worker.blas_threads as module

    original = module.ThreadpoolController
    monkeypatch.setattr(module, "ThreadpoolController", lambda: found.append(None) or original())
    blas = BlasThreads()
    for _ in range(3):
        with blas.limited(1):
            pass
    assert len(found) == 1
    monkeypatch.setitem(module.sys.modules, "a_module_with_a_blas", module)
    with blas.limited(1):
        pass
    assert len(found) == 2
