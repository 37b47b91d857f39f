"""What every kernel must do, for the tests of those who write one."""

import math
from collections.abc import Sequence

from fpmdask.errors import KernelError
from fpmdask.timing.kernel import Kernel, checked


def check_kernel(kernel: object, units: Sequence[int] = (1, 2, 7)) -> None:
    """Raise unless `kernel` keeps the promises of `Kernel`.

    Parameters
    ----------
    kernel : object
        Lives a few times.
    units : sequence of int, optional
        Increasing sizes that it can do quickly, >= 1.

    Raises
    ------
    KernelError
        Saying which promise is broken: the protocol's members, parameters of JSON values, a finite
        complexity that does not decrease, runs that return None or seconds, a teardown that may
        come before any setup and twice, a second life after it.

    Examples
    --------
    >>> from fpmdask.timing import FunctionKernel
    >>> check_kernel(FunctionKernel(range))
    """
    sound = checked(kernel, "the caller")
    complexities = [sound.complexity(size) for size in units]
    if not all(math.isfinite(value) and value >= 0 for value in complexities):
        raise KernelError(f"complexity({list(units)}) is {complexities}; it must be finite, >= 0")
    if sorted(complexities) != complexities:
        raise KernelError(f"complexity({list(units)}) is {complexities}; it must not decrease")
    sound.teardown()
    for size in [*units, units[0]]:
        sound.setup(size)
        for _ in range(2):
            _check_seconds(sound, sound.run())
        sound.teardown()
    sound.teardown()


def _check_seconds(kernel: Kernel, seconds: object) -> None:
    if seconds is None or (isinstance(seconds, float | int) and seconds > 0):
        return
    raise KernelError(
        f"run() of kernel {kernel.name!r} returned {seconds!r}; return None or seconds > 0"
    )
