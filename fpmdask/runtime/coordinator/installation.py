"""How fpmdask comes onto schedulers and workers: same version everywhere, or a clear refusal.

The worker's plugin is sent as a *shim*: a class pickled by value, so that a worker on which
fpmdask is not installed still joins the cluster. It only gets no work of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
from distributed.diagnostics.plugin import WorkerPlugin

import fpmdask
from fpmdask.runtime.version import PLUGIN


def worker_shim(
    slots: int, kernels: Mapping[str, str], tasks: Sequence[str], tuning: Mapping[str, Any]
) -> bytes:
    """Return the pickled worker plugin, for `Scheduler.register_worker_plugin`.

    Its setup returns at once; what it starts is waited for by the first run that wants the worker.
    """
    version, plugin = fpmdask.__version__, PLUGIN
    settings = slots, dict(kernels), tuple(tasks), dict(tuning)  # plain data, see above

    class Shim(WorkerPlugin):
        name = plugin

        async def setup(self, worker: Any) -> None:
            import asyncio

            self.side: Any = None
            self.starting = asyncio.ensure_future(self.start(worker))

            async def prepare(run: str, kernel: Any = None, tasks: Any = ()) -> Any:
                if refusal := await asyncio.shield(self.starting):
                    return {"unusable": refusal}
                own = worker.handlers.get("fpmdask_prepare")
                return own and await own(run=run, kernel=kernel, tasks=tasks)

            async def trim() -> None:
                refusal, own = await asyncio.shield(self.starting), "fpmdask_trim"
                if not refusal and own in worker.handlers:
                    await worker.handlers[own]()

            # until the side's own are there, which check what they are sent: fpmdask need not be
            worker.handlers.update(fpmdask_prepare=prepare, fpmdask_trim=trim)

        async def start(self, worker: Any) -> str:
            import asyncio
            import logging

            try:
                # in a thread: on a slow worker this takes a second, in which the worker does all
                # else, and whoever installs does not wait
                side, refusal = await asyncio.to_thread(self.load)
                if side is not None:
                    await side.setup(worker)
                    self.side = side
            except Exception as error:
                logging.getLogger("fpmdask").exception("fpmdask cannot start on this worker")
                return f"cannot start fpmdask: {error!r}"
            return refusal

        def load(self) -> tuple[Any, str]:
            cure = (
                f"install fpmdask {version} in its environment, from the wheel or checkout that "
                "the client has, and restart it"
            )
            try:
                import importlib

                import fpmdask

                side = importlib.import_module("fpmdask.runtime.worker.side")
            except ImportError as error:
                return None, f"has no fpmdask ({error}); {cure}"
            if fpmdask.__version__ != version:
                return None, f"runs fpmdask {fpmdask.__version__}; {cure}"
            return side.WorkerSide(*settings), ""

        async def teardown(self, worker: Any) -> None:
            self.starting.cancel()
            if self.side is not None:
                await self.side.teardown(worker)

    # By value even though this module can be imported here: it cannot be everywhere.
    Shim.__module__ = "__main__"
    pickled: bytes = cloudpickle.dumps(Shim())
    return pickled
