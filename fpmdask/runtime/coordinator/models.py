"""What clients ask of the coordinator's models: to see them, and to forget some."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fpmdask.runtime.known_models import KnownMachine, KnownModel

if TYPE_CHECKING:
    from fpmdask.runtime.coordinator.plugin import CoordinatorPlugin


def handlers(coordinator: CoordinatorPlugin) -> dict[str, Callable[..., Any]]:
    """Return the scheduler's handlers for them, by name."""

    async def models() -> list[dict[str, Any]]:
        """Return every model, and machine of MHETA's, as plain data."""
        processes = {(one.name, one.start) for one in coordinator.known_workers.identities.values()}
        library = coordinator.library
        entries, machines = library.entries(), library.machines()
        # sixteen thousand models of many points would hold the event loop
        return await asyncio.to_thread(
            lambda: (
                [
                    KnownModel(
                        name,
                        kernel.name,
                        kernel.implementation,
                        kernel.parameters,
                        hardware,
                        (name, start) in processes,
                        model,
                        library.half_widths(kernel, hardware, name),
                    ).to_json()
                    for kernel, hardware, name, start, model in entries
                ]
                + [
                    KnownMachine(
                        name,
                        kernel.name,
                        kernel.implementation,
                        kernel.parameters,
                        hardware,
                        (name, start) in processes,
                        figures,
                    ).to_json()
                    for kernel, hardware, name, start, figures in machines
                ]
            )
        )

    async def forget_models(kernel: str | None, worker: str | None) -> int:
        """Forget the models of a kernel and a worker; return how many."""
        return coordinator.library.forget(kernel, worker)

    return {"fpmdask_models": models, "fpmdask_forget_models": forget_models}
