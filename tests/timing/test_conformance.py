import math

import pytest

from fpmdask.errors import KernelError
from fpmdask.models import ConstantModel
from fpmdask.timing import EmulatedKernel, FunctionKernel, WorkerContext, check_kernel


class Sound:
    name = "sound"
    implementation = "test"
    parameters = {}  # noqa: RUF012  # a class attribute satisfies the protocol

    def setup(self, units):
        self.units = units

    def run(self):
        return 0.1 * self.units

    def teardown(self):
        self.units = None

    def complexity(self, units):
        return units**2


@pytest.mark.parametrize(
    "kernel",
    [
        Sound(),
        FunctionKernel(range),
        EmulatedKernel(WorkerContext("a"), {"*": ConstantModel(5.0).to_json()}, noise=0.1),
        EmulatedKernel(WorkerContext("a"), {"*": ConstantModel(5.0).to_json()}, limits={"a": 3}),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_sound_kernels_pass(kernel):
    check_kernel(kernel)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"complexity": lambda units: math.nan}, "finite"),
        ({"complexity": lambda units: -1.0}, "finite"),
        ({"complexity": lambda units: 1.0 / units}, "decrease"),
        ({"run": lambda: 0.0}, "returned 0.0"),
        ({"run": lambda: "long"}, "'long'"),
        ({"parameters": {"a": object()}}, "JSON"),
    ],
)
def test_broken_promises_are_named(broken, message):
    kernel = Sound()
    for name, value in broken.items():
        setattr(kernel, name, value)
    with pytest.raises(KernelError, match=message):
        check_kernel(kernel)


def test_a_missing_member_is_named():
    with pytest.raises(KernelError, match="without name"):
        check_kernel(object())
