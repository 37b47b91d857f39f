"""Collections that applications take in."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from distributed import Client, futures_of, wait
from distributed.client import FuturesCancelledError

from fpmdask.coordinator.chunks import named
from fpmdask.errors import ChunksLostError

Given = ParamSpec("Given")
Result = TypeVar("Result")


def letting_go(function: Callable[Given, Awaitable[Result]]) -> Callable[Given, Awaitable[Result]]:
    """Have a coroutine function's exceptions hold nothing of what it was given.

    Their frames would hold collections on the workers for as long as an exception lives.
    """

    @wraps(function)
    async def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        try:
            return await function(*args, **kwargs)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)
            del args, kwargs  # this frame is not cleared
            raise

    return call


async def finished(client: Client, persisted: Any) -> None:
    """Wait until all chunks of a collection are in memory.

    Raises
    ------
    ChunksLostError
        If a chunk is gone and cannot be made again.
    """
    futures = futures_of(persisted)
    try:
        with client.as_current():  # `wait` takes the default client, which may be another one
            await wait(futures)
    except FuturesCancelledError:
        lost = [future.key for future in futures if future.cancelled()]
        raise ChunksLostError(
            f"{len(lost)} input chunks are gone and have no task to make them again: {named(lost)}"
        ) from None
    for future in futures:
        if future.status == "error":
            await future  # raises what the chunk's task raised
