"""What a kernel is: the timed computation, a small faithful piece of the application."""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from fpmdask.errors import KernelError
from fpmdask.timing.scratch import Scratch
from fpmdask.tuning import DEFAULT, Tuning


@runtime_checkable
class Kernel(Protocol):
    """The timed computation.

    One life is ``setup(units)``, ``run()`` as often as the timer wants, ``teardown()``; an instance
    may live several times. A kernel that also has an attribute ``deadline`` can be interrupted
    (see `Interruptible`).

    Attributes
    ----------
    name : str
        The registered name, or a function's dotted one.
    parameters : mapping of str to JSON values
        What identifies the kernel together with its name (panel depth, dtype, width); a part of the
        model's key.
    implementation : str
        Free text such as ``"numpy 2.4.6"``; a part of the model's key.
    """

    @property
    def name(self) -> str:
        """What the kernel is registered as."""

    @property
    def parameters(self) -> Mapping[str, object]:
        """What identifies it together with its name."""

    @property
    def implementation(self) -> str:
        """Who does the work."""

    def setup(self, units: int) -> None:
        """Get ready for `units` units; not timed, but within the deadline."""

    def run(self) -> float | None:
        """Compute once; return None to be timed, or the seconds if the kernel timed itself."""

    def teardown(self) -> None:
        """Let go of what `setup` made; also called after a `setup` or `run` that raised."""

    def complexity(self, units: int) -> float:
        """Units of computation (flops, comparisons) of one run with `units` units."""


@dataclass(frozen=True)
class WorkerContext:
    """What a kernel may know of the worker that it runs on.

    Parameters
    ----------
    name : str
        The worker's name.
    nthreads : int
        Threads that the kernel may use.
    scratch : Scratch
        The worker's reusable memory.
    tuning : Tuning
        The thresholds of the run.
    """

    name: str = "local"
    nthreads: int = 1
    scratch: Scratch = field(default_factory=Scratch, compare=False)
    tuning: Tuning = DEFAULT


# Called ``factory(context, **parameters)`` on the worker that will run the kernel.
KernelFactory = Callable[..., Kernel]


def callable_name(function: Callable[..., Any]) -> str:
    """Return the dotted name of a function, of the function in a partial, or of a callable's type.

    Examples
    --------
    >>> import math, functools
    >>> callable_name(functools.partial(math.pow, 2.0))
    'math.pow'
    """
    while isinstance(function, functools.partial):
        function = function.func
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__ or 'builtins'}.{named.__qualname__}"


class FunctionKernel:
    """A plain function of `units` as a kernel.

    What the function returns is dropped, a number too: the timer's clock counts.

    Parameters
    ----------
    function : callable
        Called with the number of units.
    implementation : str, optional
        A digest of the function's code and of what it is bound to, so that the models of two
        functions with one name are not mixed.

    Raises
    ------
    KernelError
        If `function` cannot be called.

    Examples
    --------
    >>> kernel = FunctionKernel(range)
    >>> kernel.name, kernel.complexity(10)
    ('builtins.range', 10.0)
    """

    def __init__(self, function: Callable[[int], object], implementation: str = "") -> None:
        if not callable(function):
            raise KernelError(f"{function!r} cannot be called; give a function of the units")
        self.function = function
        self.name = callable_name(function)
        self.implementation = implementation
        self.parameters: Mapping[str, object] = {}
        self._units = 0

    def setup(self, units: int) -> None:
        """Remember the units."""
        self._units = units

    def run(self) -> None:
        """Call the function."""
        self.function(self._units)

    def teardown(self) -> None:
        """Nothing was made."""

    def complexity(self, units: int) -> float:
        """Return the units themselves: nothing else is known of a function."""
        return float(units)

    def __repr__(self) -> str:
        return f"FunctionKernel({self.name})"


_METHODS = ("setup", "run", "teardown", "complexity")


def as_kernel(
    obj: object, context: WorkerContext, *, implementation: str = "", **parameters: object
) -> Kernel:
    """Make a kernel of whatever a user may hand over.

    Parameters
    ----------
    obj : Kernel, class of kernels, or callable
        A kernel is returned as it is; a class with a kernel's methods is called with `context` and
        `parameters`; any other callable is taken for a function of the units.
    context : WorkerContext
        The worker that will run it.
    implementation : str, optional
        For a plain function, see `FunctionKernel`.
    **parameters
        For a class of kernels.

    Returns
    -------
    Kernel

    Raises
    ------
    KernelError
        If `obj` is none of these, or `parameters` are given to what takes none.

    Examples
    --------
    >>> as_kernel(sum, WorkerContext()).name
    'builtins.sum'
    """
    if isinstance(obj, type) and all(hasattr(obj, method) for method in _METHODS):
        return checked(obj(context, **parameters), obj.__qualname__)
    if parameters:
        raise KernelError(
            f"parameters {sorted(parameters)} for {obj!r}; only a class of kernels or a registered "
            "kernel takes parameters. Bind a function's with functools.partial"
        )
    if not isinstance(obj, type) and isinstance(obj, Kernel):
        return checked(obj, repr(obj))
    if callable(obj):
        return FunctionKernel(obj, implementation)
    raise KernelError(
        f"{obj!r} is not a kernel; give a function of the units, an object with name, parameters, "
        f"implementation, {', '.join(_METHODS)}, or the name of a registered kernel"
    )


def checked(kernel: object, origin: str) -> Kernel:
    """Return `kernel` if it is one whose identity can be stored.

    Parameters
    ----------
    kernel : object
        What a factory returned.
    origin : str
        Who made it, for the message.

    Returns
    -------
    Kernel

    Raises
    ------
    KernelError
        If something of the protocol is missing, or the parameters are not JSON values.
    """
    if not isinstance(kernel, Kernel):
        wanted = ("name", "parameters", "implementation", *_METHODS)
        missing = [name for name in wanted if not hasattr(kernel, name)]
        raise KernelError(
            f"{origin} made a {type(kernel).__name__} without {', '.join(missing)}; "
            "a kernel has all of fpmdask.timing.Kernel"
        )
    try:
        json.dumps(dict(kernel.parameters), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise KernelError(
            f"the parameters of kernel {kernel.name!r} are not JSON values ({error}); "
            "they are a part of the model's key: use str, bool, int, finite float, list, dict, None"
        ) from error
    return kernel
