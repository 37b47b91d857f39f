"""Exceptions as plain data, which messages can carry, and back."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

import cloudpickle

from fpmdask import errors
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.runtime.wire import ErrorFacts


class RemoteTraceback(Exception):
    """The traceback of an exception where it was raised; the ``__cause__`` of what is re-raised."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


def message_of(error: BaseException) -> str:
    """Return an exception's text, also of one that cannot make it."""
    try:
        return str(error)
    except Exception as inner:
        return f"its text cannot be made: {type(inner).__name__}"


def describe_error(error: BaseException) -> ErrorFacts:
    """Return an exception as plain data; ``pickled`` is for the client only (None: cannot)."""
    try:
        pickled = cloudpickle.dumps(error)
    except Exception:
        pickled = None
    message = message_of(error)
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:
        text = message
    return {
        "type": type(error).__name__,
        "message": message,
        "traceback": text,
        "pickled": pickled,
    }


def rebuild(error: Mapping[str, Any]) -> BaseException:
    """Return the exception that ``error`` describes, its remote traceback as the cause.

    What would end the client's event loop, or a coroutine without a word, becomes an error that
    says so: `SystemExit`, `KeyboardInterrupt`, `StopIteration`.
    """
    exception: BaseException | None = None
    if error.get("pickled") is not None:
        try:
            exception = cloudpickle.loads(error["pickled"])
        except Exception:
            exception = None  # its class is not importable here: fall through to the description
    if isinstance(exception, StopIteration | StopAsyncIteration) or (
        not isinstance(exception, Exception)
    ):
        exception = None
    if exception is None:
        known = getattr(errors, str(error["type"]), CoordinatorError)
        exception = known(error.get("summary") or f"{error['type']}: {error['message']}")
    if not isinstance(exception, PartitionError):
        exception.__cause__ = RemoteTraceback(error["traceback"])
    if error.get("summary"):
        exception.add_note(str(error["summary"]))
    return exception
