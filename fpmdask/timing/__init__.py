"""Measuring: kernels, repetition until the confidence interval is met, full-model builders."""

from typing import TYPE_CHECKING

from fpmdask.lazy_names import lazy
from fpmdask.timing.conformance import check_kernel as check_kernel
from fpmdask.timing.deadline import Clock as Clock
from fpmdask.timing.deadline import Deadline as Deadline
from fpmdask.timing.deadline import DeadlinePassed as DeadlinePassed
from fpmdask.timing.deadline import Interruptible as Interruptible
from fpmdask.timing.kernel import FunctionKernel as FunctionKernel
from fpmdask.timing.kernel import Kernel as Kernel
from fpmdask.timing.kernel import KernelFactory as KernelFactory
from fpmdask.timing.kernel import WorkerContext as WorkerContext
from fpmdask.timing.kernel import as_kernel as as_kernel
from fpmdask.timing.kernel import callable_name as callable_name
from fpmdask.timing.measure import measure as measure
from fpmdask.timing.policy import Reason as Reason
from fpmdask.timing.policy import Timing as Timing
from fpmdask.timing.policy import TimingPolicy as TimingPolicy
from fpmdask.timing.registry import kernel_factory as kernel_factory
from fpmdask.timing.registry import make_kernel as make_kernel
from fpmdask.timing.registry import register_kernel as register_kernel
from fpmdask.timing.registry import registered_kernels as registered_kernels
from fpmdask.timing.repetitions import Repetitions as Repetitions
from fpmdask.timing.repetitions import student_t as student_t
from fpmdask.timing.scratch import Scratch as Scratch

if TYPE_CHECKING:
    from fpmdask.timing.emulated import EmulatedKernel as EmulatedKernel
    from fpmdask.timing.gbbp import BuilderReason as BuilderReason
    from fpmdask.timing.gbbp import FullModelBuilder as FullModelBuilder
    from fpmdask.timing.surface import SurfaceModelBuilder as SurfaceModelBuilder

# Workers time kernels and have no models: what these need would take a slow one half a second.
_WITH_MODELS = {
    "EmulatedKernel": "fpmdask.timing.emulated",
    "BuilderReason": "fpmdask.timing.gbbp",
    "FullModelBuilder": "fpmdask.timing.gbbp",
    "SurfaceModelBuilder": "fpmdask.timing.surface",
}

if not TYPE_CHECKING:  # type checkers see the imports
    __getattr__, __dir__ = lazy(__name__, _WITH_MODELS)
