"""Every exception of this project: what was found, what is allowed, what to do."""

from collections.abc import Sequence
from typing import Any


class FpmdaskError(Exception):
    """Base of all errors raised by fpmdask."""


class PartitionError(FpmdaskError, ValueError):
    """Input that no partitioner, model or layout can work with."""


class KernelError(FpmdaskError, RuntimeError):
    """A kernel that cannot be built, identified or run."""


class StorageError(FpmdaskError, ValueError):
    """Storage that cannot be read, or written."""


class RecordsError(StorageError):
    """Record files that cannot be read, or a target that cannot be written."""


class LabError(FpmdaskError, RuntimeError):
    """The machine cannot make the requested lab."""


class MeasuringError(FpmdaskError, RuntimeError):
    """An answer that does not belong to the measurement it was given to."""


class CoordinatorError(FpmdaskError, RuntimeError):
    """The coordinator cannot be installed, reached, or cannot do the run."""


class NoWorkersError(CoordinatorError):
    """No worker is connected to the scheduler."""


class MissingWorkersError(CoordinatorError):
    """Workers that are named take no part."""


class VersionMismatchError(CoordinatorError):
    """Client, scheduler and workers do not run the same fpmdask."""


class ChunksLostError(CoordinatorError):
    """The only copy of an input chunk is gone and nothing can make it again."""


class RunCancelledError(CoordinatorError):
    """The run was cancelled by its client."""


def named(keys: Sequence[Any]) -> str:
    """Return the first of some keys, for a message."""
    return f"{', '.join(map(str, keys[:8]))}{', …' * (len(keys) > 8)}"
