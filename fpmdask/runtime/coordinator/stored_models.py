"""The coordinator's models on disk or object storage: loaded at the start, saved after runs.

On the scheduler. Files are read and written in threads: storage that is slow, or does not answer,
is in the way of no run. What cannot be read is left alone, and logged once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fpmdask.runtime.coordinator.library import Entry, Learned
from fpmdask.runtime.identity import Fingerprint, KernelId, WorkerIdentity
from fpmdask.runtime.known_models import Known, KnownModel

if TYPE_CHECKING:
    from fpmdask.runtime.coordinator.plugin import CoordinatorPlugin

logger = logging.getLogger(__name__)

# So long the first client waits for what is stored; what comes later counts from then on.
LOAD_SECONDS = 5.0
# So long a scheduler that closes waits until what was measured is saved.
CLOSE_SECONDS = 5.0
# The start of no worker process: what is stored is a prior for each of them.
STORED = "stored"
# So many models are put into the library in one step of the event loop.
AT_ONCE = 64


def _read(url: str) -> tuple[list[Known], list[str]]:
    """Return what is stored, and what cannot be read. In a thread: fsspec takes time to load."""
    from fpmdask.store import ModelStore

    return ModelStore(url).known()


class StoredModels:
    """What the library shares with a `ModelStore`.

    Parameters
    ----------
    coordinator
        Its library is filled, and saved.
    url
        Of the store, None: nothing is stored.
    """

    def __init__(self, coordinator: CoordinatorPlugin, url: str | None) -> None:
        self._coordinator, self._url = coordinator, url
        self._saved: dict[tuple[KernelId, Fingerprint, str], Learned] = {}
        self._saving: asyncio.Task[None] | None = None
        self._changed = False
        self._told: set[str] = set()

    async def load(self) -> None:
        """Fill the library with what is stored, for as long as a client waits."""
        if self._url is None:
            return
        loading = self._coordinator.beside(self._load(self._url))
        await asyncio.wait([loading], timeout=LOAD_SECONDS)

    async def _load(self, url: str) -> None:
        try:
            models, problems = await asyncio.to_thread(_read, url)
        except Exception:  # any file system's own errors: models are measured then
            logger.warning("the models in %s cannot be loaded", url, exc_info=True)
            return
        self._tell(problems)
        for n, one in enumerate(models):
            if not n % AT_ONCE:
                await asyncio.sleep(0)
            self._keep(one)

    def _keep(self, one: Known) -> None:
        """Put one into the library, unless the worker was measured meanwhile."""
        kernel = KernelId(one.kernel, one.implementation, one.parameters)
        identity = WorkerIdentity(one.worker, one.hardware, STORED)
        library = self._coordinator.library
        if isinstance(one, KnownModel):
            library.store_prior(kernel, identity, one.model, one.half_widths)
        else:
            library.store_machine(kernel, identity, one.figures, prior=True)

    def changed(self) -> None:
        """Save what was measured since the last time, beside whatever goes on."""
        if self._url is None:
            return
        self._changed = True
        if self._saving is None or self._saving.done():
            self._saving = self._coordinator.beside(self._save(self._url))

    async def _save(self, url: str) -> None:
        while self._changed:
            self._changed = False
            entries = self._coordinator.library.learned()
            try:
                problems = await asyncio.to_thread(self._save_changed, url, entries)
            except Exception:  # as in `_load`; the next run tries again
                logger.warning("the models cannot be saved in %s", url, exc_info=True)
                return
            self._tell(problems)

    def _save_changed(self, url: str, entries: Sequence[Entry]) -> Sequence[str]:
        """Save what is not in the store yet; return what was left alone. In a thread."""
        from fpmdask.store import ModelStore

        before, self._saved = self._saved, {}  # what the library has forgotten is forgotten here
        changed: list[Known] = []
        after: dict[tuple[KernelId, Fingerprint, str], Learned] = {}
        for entry in entries:
            kernel, hardware, name, start, learned = entry
            key = kernel, hardware, name
            known = before.get(key)
            after[key] = learned
            if start == STORED or (known is not None and (known is learned or known == learned)):
                continue
            changed.append(self._coordinator.library.known(entry, connected=True))
        done = ModelStore(url).save(changed) if changed else None
        self._saved = after
        return () if done is None else done.problems

    def _tell(self, problems: Sequence[str]) -> None:
        """Log each document that is left alone once."""
        for problem in problems:
            if problem not in self._told:
                self._told.add(problem)
                logger.warning("a stored model is left alone: %s", problem)

    async def close(self) -> None:
        """Wait until what was measured is saved, but not for storage that does not answer."""
        if self._saving is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._saving), CLOSE_SECONDS)
