"""`checkpoint=` of iterations on the client: the folder, and what is left in it afterwards."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from fpmdask.errors import StorageError
from fpmdask.runtime.checkpoint import Call, found_in, remove
from fpmdask.storage import Folder


class KeptCheckpoint:
    """The checkpoints of a call; as a context manager, the time in which it makes them.

    Afterwards there is none, or, after a failure, the newest one that is complete: of those that
    were made meanwhile, or, without any, of those from before.

    Parameters
    ----------
    url, every
        The folder, and iterations from one to the next.
    call
        What they belong to.

    Raises
    ------
    StorageError
        On entering, if there can be no such folder.
    """

    def __init__(self, url: str, every: int, call: Call) -> None:
        self.call, self._url, self._every, self._run = call, url, every, uuid4().hex[:8]
        self._folder = Folder(url)

    def order(self) -> dict[str, Any]:
        """Return what workers are told, plain data."""
        return {
            "url": self._url,
            "every": self._every,
            "run": self._run,
            **asdict(self.call),
        }

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._folder.check_writable)
        await asyncio.to_thread(self._folder.make)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await asyncio.to_thread(remove, self._folder, self.call)
            return
        # what went wrong matters to the caller, not that this goes wrong then, too
        with suppress(StorageError):
            # a run that was cancelled may write the next one still
            ended = isinstance(error, Exception)
            await asyncio.shield(asyncio.to_thread(self._keep_newest, ended))

    def _keep_newest(self, ended: bool) -> None:
        found, _ = found_in(self._folder, self.call)
        # a later one of an earlier run was of no use to this one
        own = [one for one in found if self._run in one.stem]
        stem = (own or found)[0].stem if found else ""
        remove(self._folder, self.call, keep=stem, before=None if ended else stem)
