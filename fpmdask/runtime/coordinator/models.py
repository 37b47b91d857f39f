"""What clients ask of the coordinator's models: to see them, and to forget some."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fpmdask.runtime.coordinator.library import Entry

if TYPE_CHECKING:
    from fpmdask.runtime.coordinator.plugin import CoordinatorPlugin


def handlers(coordinator: CoordinatorPlugin) -> dict[str, Callable[..., Any]]:
    """Return the scheduler's handlers for them, by name."""

    async def models() -> list[dict[str, Any]]:
        """Return every model, and machine of MHETA's, as plain data."""
        processes = {(one.name, one.start) for one in coordinator.identities.values()}
        library = coordinator.library

        def plain(entries: list[Entry]) -> list[dict[str, Any]]:
            return [
                library.known(entry, connected=(entry[2], entry[3]) in processes).to_json()
                for entry in entries
            ]

        # sixteen thousand models of many points would hold the event loop
        return await asyncio.to_thread(plain, library.learned())

    async def forget_models(kernel: str | None, worker: str | None) -> int:
        """Forget the models of a kernel and a worker; return how many."""
        return coordinator.library.forget(kernel, worker)

    return {"fpmdask_models": models, "fpmdask_forget_models": forget_models}
