"""The progress of one call: its events go to the user's function, or to a display.

In the client, in its event loop's thread. Calls of several threads or tasks have one each, which
the context of their coroutine knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Self

from fpmdask.errors import CoordinatorError
from fpmdask.runtime.client import displays
from fpmdask.runtime.progress import Meter
from fpmdask.runtime.remote_errors import message_of

logger = logging.getLogger(__name__)

# What a user may give: a function of events, whether there is a display, None: where one looks.
Progress = Callable[[Mapping[str, Any]], None]
Wanted = Progress | bool | None

# A display is drawn again so often, also where no event comes.
REFRESH_SECONDS = 0.5
# A function that has heard nothing for so long hears how far the call is, and what goes on.
QUIET_SECONDS = 1.0
# What goes on before a call's first event: inputs are sent, the scheduler is asked.
PREPARE = "prepare"

_CALL: ContextVar[CallProgress | None] = ContextVar("fpmdask_call", default=None)


def checked(progress: Any) -> Wanted:
    """Return what a user has given as `progress`.

    Raises
    ------
    CoordinatorError
        If it is nothing that can be, or a display that needs rich where that is missing.
    """
    if progress is None or isinstance(progress, bool):
        displays.choose(progress)
    elif not callable(progress):
        raise CoordinatorError(
            f"progress is a {type(progress).__name__}; give True, False, None or a function of one "
            "event"
        )
    found: Wanted = progress
    return found


def tell(event: Mapping[str, Any]) -> None:
    """Give an event to the call that goes on in this context."""
    if (call := _CALL.get()) is not None:
        call.tell(event)


class CallProgress:
    """Tells of one call, from ``start`` events of its runs to ``end`` or ``failed``.

    Parameters
    ----------
    title
        The method that was called.
    wanted
        A function that gets every event, with ``fraction``; or whether to display readings.
    quiet_seconds
        After so long without an event a function gets a ``progress`` event.
    """

    def __init__(self, title: str, wanted: Wanted, *, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._meter = Meter(title, time.monotonic())
        self._hear = wanted if callable(wanted) else None
        self._quiet_seconds, self._heard = quiet_seconds, self._meter.began
        kind = None if callable(wanted) else displays.choose(wanted)
        self._display = None if kind is None else displays.display(kind)
        # a call that nobody has asked to see, and that is over soon, shows nothing
        self._at_once = wanted is True
        self._shown = False
        self._refreshing: asyncio.Task[None] | None = None
        self._before: Token[CallProgress | None] | None = None

    def tell(self, event: Mapping[str, Any]) -> None:
        """Take in an event."""
        now = time.monotonic()
        self._meter.heard(event, now)
        if self._hear is not None:
            self._heard = now
            self._hear({**event, "fraction": self._meter.reading(now).fraction})

    async def __aenter__(self) -> Self:
        self._before = _CALL.set(self)
        if self._display is not None:
            if self._at_once:
                self._draw()
            self._refreshing = asyncio.ensure_future(self._refresh())
        elif self._hear is not None:
            self._refreshing = asyncio.ensure_future(self._repeat(self._hear))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._before is not None:
            _CALL.reset(self._before)
        if self._refreshing is not None:
            self._refreshing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refreshing
        seconds = round(time.monotonic() - self._meter.began, 4)
        if error is None:
            self.tell({"event": "end", "seconds": seconds})
        else:
            name, message = type(error).__name__, message_of(error)
            said = f"{name}: {message}" if message else name
            try:
                self.tell({"event": "failed", "seconds": seconds, "error": said})
            except Exception:  # what the call raises says more
                logger.exception("progress raised on the last event of a call that has failed")
        if self._shown:
            self._draw(last=True)

    def _draw(self, *, last: bool = False) -> None:
        """Draw a reading; a display that cannot is told of, and given up."""
        self._shown = True
        if self._display is None:
            return
        reading = self._meter.reading(time.monotonic())
        try:
            if last:
                self._display.close(reading)
            else:
                self._display.show(reading)
        except Exception:  # a terminal that is gone must not end the run
            logger.exception("the progress cannot be shown")
            self._display = None

    async def _repeat(self, hear: Progress) -> None:
        """Tell how far the call is whenever no event has come for a while."""
        while True:
            await asyncio.sleep(max(0.0, self._heard + self._quiet_seconds - time.monotonic()))
            now = time.monotonic()
            if now - self._heard < self._quiet_seconds:
                continue
            self._heard = now
            reading = self._meter.reading(now)
            event: dict[str, Any] = {
                "event": "progress",
                "seconds": round(reading.seconds, 4),
                "phase": reading.phase or PREPARE,
                "fraction": reading.fraction,
            }
            counted = {"done": reading.done, "total": reading.total, "unit": reading.unit}
            if reading.done is not None:
                event |= {name: of for name, of in counted.items() if of is not None}
            try:
                hear(event)
            except Exception:  # the call's own next event raises it again, and ends the call
                logger.exception("progress raised between two events; it gets no more of these")
                return

    async def _refresh(self) -> None:
        """Draw again and again."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            self._draw()
