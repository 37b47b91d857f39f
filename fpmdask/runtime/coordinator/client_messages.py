"""What a run tells its client, and what it asks of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from fpmdask.errors import CoordinatorError
from fpmdask.runtime.progress import Pace
from fpmdask.runtime.wire import Question, check_message


class ClientMessages:
    """Events and requests of one run, which its client polls, and its answers.

    Parameters
    ----------
    run
        Its id.
    questions
        What the client can be asked for, by its name.

    Attributes
    ----------
    events, requests : list of dict
        In order.
    news : asyncio.Event
        Is set where something is added.
    """

    def __init__(self, run: str, questions: Mapping[str, Question]) -> None:
        self._run, self._questions = run, questions
        self.events: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.news = asyncio.Event()
        self._answers: list[tuple[Question, asyncio.Future[dict[str, Any]]]] = []
        self._loop = asyncio.get_running_loop()
        self._started = time.monotonic()
        self._pace = Pace()

    def emit(self, event: str, **facts: Any) -> None:
        """Tell the client what happened; it reads this at its next poll."""
        self.events.append(
            {"event": event, "seconds": round(time.monotonic() - self._started, 4), **facts}
        )
        # from a planning thread, too
        self._loop.call_soon_threadsafe(self.news.set)

    def progress(self, phase: str, done: float, total: float | None, unit: str) -> None:
        """Tell the client how far a phase is, a few times a second at most."""
        if self._pace.due(phase, time.monotonic(), last=done == total):
            self.emit("progress", phase=phase, done=done, total=total, unit=unit)

    def ask(self, request: str, **facts: Any) -> asyncio.Future[dict[str, Any]]:
        """Ask the calling client for what only it can do; it reads this at its next poll.

        The future gets its answer; what it raises there ends the run. Requests are no events: the
        user's progress does not hear of them.

        Raises
        ------
        CoordinatorError
            If the application declares no such question.
        """
        if (question := self._questions.get(request)) is None:
            declared = ", ".join(sorted(self._questions)) or "none"
            raise CoordinatorError(
                f"the application of run {self._run} declares no question {request!r}; it declares "
                f"{declared}: add it to the questions of its Messages"
            )
        answer = self._loop.create_future()
        self._answers.append((question, answer))
        self.requests.append({"request": request, **facts})
        self.news.set()
        return answer

    def answered(self, number: int, answer: Mapping[str, Any]) -> None:
        """Take in what the client has answered to a request.

        Raises
        ------
        CoordinatorError
            If there is no such request, it has been answered, or the answer is malformed.
        """
        if not 0 <= number < len(self._answers) or self._answers[number][1].done():
            raise CoordinatorError(f"run {self._run} waits for no answer to a request {number}")
        question, waiting = self._answers[number]
        check_message(question.answer, answer, f"the answer to {self.requests[number]['request']}")
        waiting.set_result(dict(answer))
