"""Repeat a kernel until its mean duration is known well enough."""

import math
import operator
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import TypeGuard

from fpmdask.errors import KernelError
from fpmdask.timing.deadline import Clock, Deadline, DeadlinePassed, Interruptible
from fpmdask.timing.kernel import Kernel
from fpmdask.timing.policy import Reason, Timing, TimingPolicy
from fpmdask.timing.repetitions import Repetitions, student_t

# A timed call of a kernel that does nothing takes 3 µs; of one that takes less than some times that
# nothing is known.
SHORTEST_SECONDS = 10e-6
# A worker that others keep busy may take so many times as long over nothing.
_BUSY = 10

# The shortest time that is precise enough is cut into that many batches: Student's t of their 4
# degrees of freedom is 2.8, that of 1 would be 12.7. At the default 0.1 s a batch is 20 ms, two
# periods of a 10 ms quota.
_BATCHES = 5


def too_short(seconds: Iterable[float]) -> bool:
    """Tell whether what was timed on some workers is too short to tell them apart.

    Parameters
    ----------
    seconds : iterable of float
        One mean duration per worker, at least one.

    Examples
    --------
    >>> too_short([3e-6, 4e-6, 31e-6]), too_short([3e-6, 4e-6, 1e-3]), too_short([20e-6])
    (True, False, False)
    """
    found = sorted(seconds)
    return median(found) < SHORTEST_SECONDS and found[-1] < _BUSY * SHORTEST_SECONDS


def measure(
    kernel: Kernel,
    units: int,
    policy: TimingPolicy | None = None,
    *,
    clock: Clock = time.perf_counter,
    deadline_seconds: float | None = None,
) -> Timing:
    """Return how long one run of `kernel` with `units` units takes.

    Parameters
    ----------
    kernel : Kernel
        Set up once, run repeatedly, torn down always.
    units : int
        Problem size, >= 1.
    policy : TimingPolicy, optional
        When to stop; the default policy if not given.
    clock : callable, optional
        Returns seconds.
    deadline_seconds : float, optional
        Time for everything, setup and warm-up included, > 0. When it passes before one run is
        complete, the size is too large: the result is ``inf``, reason ``"deadline"``.

    Returns
    -------
    Timing
        The mean over the whole back-to-back time, pauses between repetitions included.

    Raises
    ------
    KernelError
        For bad `units` or deadline, or a kernel whose duration is no positive number.
    Exception
        Whatever the kernel raises, after its teardown; a second exception of the teardown is
        noted in it.

    Notes
    -----
    1. A run that was complete before the deadline proves that the size is not too large; when a
       later repetition is cut off, what was measured until then counts, reason ``"budget"``.
    2. Seconds that a kernel returns are taken at their word, also against budget and deadline
       (where the clock's count if they are more): no sleep is needed to emulate. `min_seconds` and
       the batches of `Repetitions` are about the timer's clock under a quota and do not apply.
    3. A first run of `min_seconds` or longer is counted unless the second takes less than half of
       it. What a kernel does only once (compiling, allocating) belongs in its setup: a first run
       that leaves no time for a second one is the only one.

    Examples
    --------
    >>> from itertools import count
    >>> from fpmdask.timing import FunctionKernel
    >>> policy = TimingPolicy(budget_seconds=9)
    >>> measure(FunctionKernel(range), 10, policy, clock=count().__next__)
    Timing(seconds=1.0, half_width=0.0, repetitions=2, total_seconds=2.0, reason='precise')
    """
    policy = TimingPolicy() if policy is None else policy
    size = _checked_units(units)
    student_t(1, policy.confidence)  # its import must not be counted as the kernel's
    begin = clock()
    deadline = Deadline(math.inf if deadline_seconds is None else deadline_seconds, clock)
    with _torn_down(kernel):
        if _interruptible(kernel):
            kernel.deadline = None if deadline_seconds is None else deadline
        try:
            kernel.setup(size)
        except DeadlinePassed:
            return _too_large(clock() - begin)
        return _Repeater(kernel, policy, deadline.seconds, clock, begin).repeat()


class _Repeater:
    """One measurement after its setup; `used` is what counts against the deadline."""

    def __init__(
        self, kernel: Kernel, policy: TimingPolicy, allowed: float, clock: Clock, begin: float
    ) -> None:
        self.kernel = kernel
        self.policy = policy
        self.allowed = allowed
        self.clock = clock
        self.stamp = clock()
        self.used = self.stamp - begin
        self.self_timed = False
        self._start_again()

    def repeat(self) -> Timing:
        """Run until there is a reason to stop."""
        warmups, warm, doubtful = self.policy.warmup, 0.0, 0.0
        reason: Reason | None = None
        if self.used > self.allowed:
            return _too_large(self.used)
        while reason is None:
            before = self.used
            seconds = self._run()
            if math.isinf(seconds) or self.used > self.allowed:
                if self.repetitions.count == 0 and warm == 0:
                    return _too_large(self.used)
                if self.repetitions.count == 0:
                    self.repetitions.add(warm)
                reason = "budget"
            elif warmups > 0 and seconds < self.policy.min_seconds:
                warmups, warm = warmups - 1, seconds
            else:
                if warmups > 0:
                    warmups, doubtful = 0, seconds
                else:
                    if seconds < doubtful / 2:
                        self._start_again()
                    doubtful = 0.0
                self.repetitions.add(seconds)
                self.spent += self.used - before
                reason = self._reason()
        return self._timing(reason)

    def _start_again(self) -> None:
        batch_seconds = 0.0 if self.self_timed else self.policy.min_seconds / _BATCHES
        self.repetitions = Repetitions(self.policy.confidence, batch_seconds)
        self.spent = 0.0  # of `used`, what the counted repetitions took

    def _run(self) -> float:
        """Run once and return its seconds, inf if it was too large."""
        try:
            said = self.kernel.run()
        except DeadlinePassed:
            said = math.inf
        now = self.clock()
        wall, self.stamp = now - self.stamp, now
        seconds = wall if said is None else _checked_seconds(self.kernel, said)
        self.used += wall if math.isinf(seconds) else max(wall, seconds)
        if said is not None:
            self.self_timed = True
            self.repetitions.batch_seconds = 0.0
        return seconds

    def _reason(self) -> Reason | None:
        done, policy = self.repetitions, self.policy
        if (
            done.count >= policy.min_repetitions
            and (self.self_timed or done.total >= policy.min_seconds)
            and done.half_width <= policy.relative_error * done.mean
        ):
            return "precise"
        if done.count >= policy.max_repetitions:
            return "repetitions"
        one_more = self.spent / done.count
        if self.spent + one_more > policy.budget_seconds or self.used + one_more > self.allowed:
            return "budget"
        return None

    def _timing(self, reason: Reason) -> Timing:
        done = self.repetitions
        if done.total <= 0:
            raise KernelError(
                f"{done.count} runs of kernel {self.kernel.name!r} took {done.total} s by the "
                "clock; raise max_repetitions, or make one run do more work"
            )
        return Timing(done.mean, done.half_width, done.count, done.total, reason)


@contextmanager
def _torn_down(kernel: Kernel) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        try:
            _tear_down(kernel)
        except Exception as second:
            error.add_note(f"teardown of kernel {kernel.name!r} failed too: {second!r}")
        raise
    _tear_down(kernel)


def _tear_down(kernel: Kernel) -> None:
    try:
        kernel.teardown()
    finally:
        if _interruptible(kernel):
            kernel.deadline = None


def _interruptible(kernel: Kernel) -> TypeGuard[Interruptible]:
    return hasattr(kernel, "deadline")  # isinstance with a protocol takes ten times as long


def _too_large(seconds: float) -> Timing:
    return Timing(math.inf, math.inf, 0, seconds, "deadline")


def _checked_units(units: int) -> int:
    try:
        size = operator.index(units)
    except TypeError:
        size = 0
    if size < 1:
        raise KernelError(f"cannot time {units!r} units; it must be an int >= 1")
    return size


def _checked_seconds(kernel: Kernel, said: object) -> float:
    """Return what a kernel that times itself said; inf stands for too large."""
    try:
        seconds = float(said)  # type: ignore[arg-type]  # anything may come from a user's kernel
    except (TypeError, ValueError):
        seconds = math.nan
    if not seconds > 0:
        raise KernelError(
            f"run() of kernel {kernel.name!r} returned {said!r}; return None to be timed, "
            "or the seconds, > 0"
        )
    return seconds
