import functools
import json
import subprocess
import sys

import numpy as np
import pytest

from fpmdask.errors import KernelError
from fpmdask.timing import (
    FunctionKernel,
    Interruptible,
    Kernel,
    Scratch,
    TimingPolicy,
    WorkerContext,
    as_kernel,
    callable_name,
    kernel_factory,
    make_kernel,
    measure,
    register_kernel,
    registered_kernels,
    registry,
)


class Doubling:
    name = "doubling"
    implementation = "test"

    def __init__(self, context, depth=3):
        self.context = context
        self.parameters = {"depth": depth}

    def setup(self, units): ...

    def run(self):
        return 1.0

    def teardown(self): ...

    def complexity(self, units):
        return 2.0 * units


@pytest.fixture
def clean_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


def free_function(units):
    return units


def test_an_object_with_everything_is_a_kernel():
    kernel = Doubling(WorkerContext())
    assert isinstance(kernel, Kernel)
    assert as_kernel(kernel, WorkerContext()) is kernel
    assert not isinstance(kernel, Interruptible)


def test_a_class_of_kernels_is_called_with_context_and_parameters():
    context = WorkerContext("a", 2)
    kernel = as_kernel(Doubling, context, depth=7)
    assert kernel.context is context
    assert kernel.parameters == {"depth": 7}


def test_a_plain_function_becomes_a_kernel_whose_result_is_dropped():
    called = []
    kernel = as_kernel(lambda units: called.append(units) or 99.0, WorkerContext())
    assert isinstance(kernel, FunctionKernel)
    kernel.setup(5)
    assert kernel.run() is None
    kernel.teardown()
    assert called == [5]
    assert "lambda" in kernel.name


def test_the_digest_of_a_function_is_its_implementation():
    assert as_kernel(free_function, WorkerContext(), implementation="ab12").implementation == "ab12"


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (free_function, "free_function"),
        (functools.partial(functools.partial(free_function), 1), "free_function"),
        (type("Callee", (), {"__call__": lambda self, units: None})(), "Callee"),
        (np.sort, "numpy.sort"),
    ],
)
def test_callables_have_a_name(function, name):
    assert callable_name(function).endswith(name)


@pytest.mark.parametrize("thing", [None, 3, "matmul", [1]])
def test_what_is_no_kernel_is_refused_with_the_cure(thing):
    with pytest.raises(KernelError, match="give a function of the units"):
        as_kernel(thing, WorkerContext())


def test_parameters_for_a_function_are_refused():
    with pytest.raises(KernelError, match=r"functools\.partial"):
        as_kernel(free_function, WorkerContext(), depth=3)


def test_a_function_kernel_needs_a_function():
    with pytest.raises(KernelError, match="cannot be called"):
        FunctionKernel(3)


def test_parameters_that_are_not_json_are_refused():
    with pytest.raises(KernelError, match="JSON"):
        as_kernel(Doubling, WorkerContext(), depth=np.float32(3))
    with pytest.raises(KernelError, match="JSON"):
        as_kernel(Doubling, WorkerContext(), depth=float("nan"))


def test_the_context_does_not_compare_its_scratch():
    assert WorkerContext("a", 1, Scratch()) == WorkerContext("a", 1, Scratch())


@pytest.mark.usefixtures("clean_registry")
class TestRegistry:
    def test_a_registered_factory_makes_kernels(self):
        register_kernel("x.double-1", Doubling)
        assert kernel_factory("x.double-1") is Doubling
        assert "x.double-1" in registered_kernels()
        made = make_kernel("x.double-1", WorkerContext("w"), depth=4)
        assert json.loads(json.dumps(made.parameters)) == {"depth": 4}

    def test_the_last_registration_counts(self):
        register_kernel("x", Doubling)
        register_kernel("x", FunctionKernel)
        assert kernel_factory("x") is FunctionKernel

    def test_strings_are_imported_on_first_use(self):
        register_kernel("x", "fpmdask.timing.kernel:FunctionKernel")
        assert kernel_factory("x") is FunctionKernel
        register_kernel("y", "fpmdask.timing.kernel:FunctionKernel.setup")
        assert kernel_factory("y") is FunctionKernel.setup

    @pytest.mark.parametrize("name", ["", "a b", "-a", ".a", "ä", "a/b", "a\n", None, 3])
    def test_names_are_checked(self, name):
        with pytest.raises(KernelError, match="kernel name"):
            register_kernel(name, Doubling)

    @pytest.mark.parametrize(
        "target", ["", "a.b", "a:", ":b", "a:b:c", "os.system('x'):b", "a..b:c"]
    )
    def test_strings_are_checked(self, target):
        with pytest.raises(KernelError, match="module:attribute"):
            register_kernel("x", target)

    def test_a_factory_is_callable(self):
        with pytest.raises(KernelError, match="int cannot be called"):
            register_kernel("x", 3)

    def test_an_unknown_name_lists_the_known_ones(self):
        with pytest.raises(KernelError, match=r"'nothing'.*emulated.*register_kernel"):
            kernel_factory("nothing")

    @pytest.mark.parametrize("target", ["fpmdask.no_such:thing", "fpmdask.timing:no_such"])
    def test_a_target_that_is_not_there_says_so(self, target):
        register_kernel("x", target)
        with pytest.raises(KernelError, match="cannot import"):
            kernel_factory("x")

    def test_a_target_that_is_no_factory_says_so(self):
        register_kernel("x", "fpmdask:__version__")
        with pytest.raises(KernelError, match="'x'"):
            kernel_factory("x")

    def test_what_a_factory_makes_is_checked(self):
        register_kernel("x", lambda context: object())
        with pytest.raises(KernelError, match="without name, parameters"):
            make_kernel("x", WorkerContext())


@pytest.mark.slow
def test_importing_is_cheap_and_pure():
    code = (
        "import sys, fpmdask.timing\n"
        "heavy = {'distributed', 'dask', 'scipy.stats', 'bokeh'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_function_is_measured_by_the_real_clock():
    policy = TimingPolicy(min_seconds=0.01, budget_seconds=0.05)
    timing = measure(FunctionKernel(lambda units: sum(range(units))), 10_000, policy)
    assert timing.seconds > 0
    assert timing.total_seconds == pytest.approx(timing.seconds * timing.repetitions)
