"""What is asked for: as plain data."""

from collections.abc import Mapping

from fpmdask.runtime.wire import Messages, Nothing, Packed, Request


class PartitionRequest(Request):
    """Share units out by timing a kernel; ``limits`` are the most units of workers, by name."""

    kernel: Packed
    units: int
    limits: Mapping[str, float] | None


MESSAGES = Messages(Nothing)
