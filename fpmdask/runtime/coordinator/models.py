"""What clients ask of the coordinator's models: to see them, and to forget some."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fpmdask.runtime.known_models import KnownMachine, KnownModel, ModelFacts
from fpmdask.runtime.protocol import FORGET_MODELS, MODELS
from fpmdask.runtime.rpc import Call
from fpmdask.runtime.validation import as_plain

if TYPE_CHECKING:
    from fpmdask.runtime.coordinator.plugin import CoordinatorPlugin


def handlers(coordinator: CoordinatorPlugin) -> dict[Call[Any], Callable[..., Any]]:
    """Return what answers clients' calls."""

    async def models() -> Any:
        """Return every model, and machine of MHETA's, as plain data."""
        processes = {(one.name, one.start) for one in coordinator.identities.values()}
        library = coordinator.library
        entries, machines = library.entries(), library.machines()

        def facts() -> Any:
            found: list[KnownMachine | ModelFacts] = [
                KnownModel(
                    name,
                    kernel.name,
                    kernel.implementation,
                    kernel.parameters,
                    hardware,
                    (name, start) in processes,
                    model,
                    library.half_widths(kernel, hardware, name),
                ).facts
                for kernel, hardware, name, start, model in entries
            ]
            found += [
                KnownMachine(
                    name,
                    kernel.name,
                    kernel.implementation,
                    kernel.parameters,
                    hardware,
                    (name, start) in processes,
                    figures,
                )
                for kernel, hardware, name, start, figures in machines
            ]
            return as_plain(MODELS.answer, found)

        # sixteen thousand models of many points would hold the event loop
        return await asyncio.to_thread(facts)

    async def forget_models(kernel: str | None, worker: str | None) -> int:
        """Forget the models of a kernel and a worker; return how many."""
        return coordinator.library.forget(kernel, worker)

    return {MODELS: models, FORGET_MODELS: forget_models}
