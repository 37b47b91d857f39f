"""Every exception of this project: what was found, what is allowed, what to do."""


class FpmdaskError(Exception):
    """Base of all errors raised by fpmdask."""


class PartitionError(FpmdaskError, ValueError):
    """Input that no partitioner, model or layout can work with."""


class KernelError(FpmdaskError, RuntimeError):
    """A kernel that cannot be built, identified or run."""


class LabError(FpmdaskError, RuntimeError):
    """The machine cannot make the requested lab."""
