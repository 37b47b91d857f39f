"""What clients ask of the coordinator's models: to see them, and to forget some."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fpmdask.runtime.coordinator.library import Entry
from fpmdask.runtime.known_models import KnownModel
from fpmdask.runtime.protocol import FORGET_MODELS, MODELS
from fpmdask.runtime.rpc import Call
from fpmdask.runtime.validation import as_plain

if TYPE_CHECKING:
    from fpmdask.runtime.coordinator.plugin import CoordinatorPlugin


def handlers(coordinator: CoordinatorPlugin) -> dict[Call[Any], Callable[..., Any]]:
    """Return what answers clients' calls."""

    async def models() -> Any:
        """Return every model, and machine of MHETA's, as plain data."""
        processes = {(one.name, one.start) for one in coordinator.known_workers.identities.values()}
        library = coordinator.library

        def facts(entries: list[Entry]) -> Any:
            known = [
                library.known(entry, connected=(entry[2], entry[3]) in processes)
                for entry in entries
            ]
            plain = [one.facts if isinstance(one, KnownModel) else one for one in known]
            return as_plain(MODELS.answer, plain)

        # sixteen thousand models of many points would hold the event loop
        return await asyncio.to_thread(facts, library.learned())

    async def forget_models(kernel: str | None, worker: str | None) -> int:
        """Forget the models of a kernel and a worker; return how many."""
        return coordinator.library.forget(kernel, worker)

    return {MODELS: models, FORGET_MODELS: forget_models}
