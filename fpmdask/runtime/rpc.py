"""Messages between processes: each handler gets what is declared, and its caller what it answers.

Pure: a `Call` is answered, a `Notice` is not; both are declared in `fpmdask.runtime.protocol`.
`answer_calls` and `take_notices` are the only ways by which our handlers come into the tables of
Dask's servers. A handler is called with the parameters that are declared or not at all: the sender
of a malformed message gets `MalformedError`, by the answer of a call, or by what a process that
takes notices tells senders of those that it refuses. The process goes on in either case.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, TypeVar

from fpmdask.errors import CoordinatorError
from fpmdask.runtime.validation import (
    LOOKED_AT,
    MalformedError,
    as_plain,
    check_message,
    check_value,
    fitting,
    from_plain,
)

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Handler = Callable[..., Any]
Handlers = MutableMapping[str, Any]
# Tells a sender of a refused notice: (its address where it is a worker, the run, why).
Refuse = Callable[[str, str, Exception], None]


class NoHandlerError(CoordinatorError, ConnectionError):
    """A process has no handler of this name: it is closing, or has no fpmdask."""


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """A message that is answered.

    Parameters
    ----------
    op
        Dask's name of its handler.
    parameters
        The TypedDict of what the handler is called with.
    answer
        Type of its answer; dataclasses travel as plain data.
    is_plain
        Whether the handler returns plain data, which it makes in a thread.
    """

    op: str
    parameters: Any
    answer: Any
    is_plain: bool = False

    def checked(self, handler: Handler) -> Handler:
        """Return the handler for Dask's table: it checks before it calls this one."""

        @wraps(handler)
        async def handle(**message: Any) -> Any:
            check_message(self.parameters, message, f"the message {self.op}")
            answer = handler(**message)
            if inspect.isawaitable(answer):
                answer = await answer
            return answer if self.is_plain else as_plain(self.answer, answer)

        return handle

    async def ask(self, process: Any, **parameters: Any) -> Answer:
        """Return what a process answers, once it is checked.

        Parameters
        ----------
        process
            Dask's RPC to it.
        **parameters
            As declared.

        Raises
        ------
        MalformedError
            If the process refuses the message, or its answer is not as declared.
        NoHandlerError
            If it does not know the message. Dask answers None then: a call whose answer may be
            None cannot tell this.
        OSError
            If it cannot be reached.
        """
        try:
            answer = await getattr(process, self.op)(**parameters)
        except Exception as error:
            # the scheduler's connections rebuild no exceptions: they raise one of their text
            text, name = str(error), f"{MalformedError.__name__}("
            if type(error) is not Exception or not text.startswith(name):
                raise
            raise MalformedError(text[len(name) + 1 : -2]) from error
        if answer is None and not fitting(self.answer)(None):
            raise NoHandlerError(
                f"there is no handler {self.op}: the process is closing, or runs no fpmdask of "
                "this version"
            )
        check_value(self.answer, answer, f"the answer to {self.op}")
        rebuilt: Answer = from_plain(self.answer, answer)
        return rebuilt


@dataclass(frozen=True)
class Notice:
    """A message between scheduler and worker that is not answered.

    Parameters
    ----------
    op
        Dask's name of its handler.
    parameters
        The TypedDict of what it brings.
    by_worker
        Whether workers send it: its handler's first parameter is the address of the sender.
    """

    op: str
    parameters: Any
    by_worker: bool = False

    def message(self, **parameters: Any) -> dict[str, Any]:
        """Return what is sent by Dask's streams: a process that gets an unknown notice leaves."""
        return {"op": self.op, **parameters}

    def checked(self, handler: Handler, refuse: Refuse) -> Handler:
        """Return the handler for Dask's table, which raises nothing: that would end the stream.

        What it refuses is logged, the same only once in a row, and its sender is told.
        """
        said = ""

        @wraps(handler)
        def handle(**message: Any) -> None:
            nonlocal said
            sender = str(message.pop("worker", "")) if self.by_worker else ""
            try:
                check_message(self.parameters, message, f"the message {self.op}")
                handler(*([sender] if self.by_worker else []), **message)
            except Exception as error:
                run, text = message.get("run"), str(error)
                if text != said:
                    known = isinstance(error, MalformedError)
                    logger.error("run %s, %s: %s", run, sender, text, exc_info=not known)
                    said = text
                refuse(sender, run if isinstance(run, str) else "", error)

        return handle


def answer_calls(handlers: Handlers, by: Mapping[Call[Any], Handler]) -> None:
    """Have a server of Dask's answer calls: ``handlers`` is its table, by name."""
    handlers.update({call.op: call.checked(handler) for call, handler in by.items()})


def take_notices(handlers: Handlers, by: Mapping[Notice, Handler], refuse: Refuse) -> None:
    """Have a server of Dask's take notices: ``handlers`` is its table, by name.

    ``refuse`` tells a sender that its notice was not taken.
    """
    handlers.update({notice.op: notice.checked(handler, refuse) for notice, handler in by.items()})


def take_back(handlers: Handlers, calls: Iterable[Call[Any]]) -> None:
    """Take the handlers of calls out of a table again."""
    for call in calls:
        handlers.pop(call.op, None)


def drop_notices(handlers: Handlers, notices: Iterable[Notice]) -> None:
    """Have notices be dropped that come late: one that is unknown would end its stream."""

    def drop(**message: Any) -> None:
        """Do nothing: whom it was for has gone."""

    handlers.update(dict.fromkeys((notice.op for notice in notices), drop))


def checker(kind: Any, what: str, most: int = LOOKED_AT) -> Callable[[Any], None]:
    """Return what refuses a value that is not of a type: a fast `check_value` for one kind.

    ``most`` elements of each sequence and mapping are looked at.
    """
    fits = fitting(kind, most)

    def check(value: Any) -> None:
        if not fits(value):
            check_value(kind, value, what)

    return check
