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
from fpmdask.errors import VersionMismatchError

PLUGIN = "fpmdask"


def check_version(theirs: str) -> None:
    """Raise `VersionMismatchError` unless a client runs the version of this scheduler."""
    if theirs != fpmdask.__version__:
        raise VersionMismatchError(
            f"the client runs fpmdask {theirs}, the scheduler {fpmdask.__version__}; "
            "install one version on the client, the scheduler and all workers"
        )


def without_fpmdask(reason: str) -> bool:
    """Tell whether a worker was left out since it has no fpmdask, or another version."""
    return reason.startswith(("has no fpmdask", "runs fpmdask"))


def worker_shim(slots: int, kernels: Mapping[str, str], tasks: Sequence[str]) -> bytes:
    """Return the pickled worker plugin, for `Scheduler.register_worker_plugin`."""
    version, plugin = fpmdask.__version__, PLUGIN
    settings = slots, dict(kernels), tuple(tasks)

    class Shim(WorkerPlugin):
        name = plugin

        async def setup(self, worker: Any) -> None:
            self.side = None
            cure = (
                f"install fpmdask {version} in its environment, from the wheel or checkout that "
                "the client has, and restart it"
            )
            try:
                import fpmdask
                from fpmdask.coordinator.worker import WorkerSide
            except ImportError as error:
                self.refuse(worker, f"has no fpmdask ({error}); {cure}")
                return
            if fpmdask.__version__ != version:
                self.refuse(worker, f"runs fpmdask {fpmdask.__version__}; {cure}")
                return
            self.side = WorkerSide(*settings)
            await self.side.setup(worker)

        def refuse(self, worker: Any, reason: str) -> None:
            async def prepare(run: str, kernel: Any = None) -> dict[str, str]:
                return {"unusable": reason}

            worker.handlers["fpmdask_prepare"] = prepare

        async def teardown(self, worker: Any) -> None:
            if self.side is not None:
                await self.side.teardown(worker)

    # By value even though this module can be imported here: it cannot be everywhere.
    Shim.__module__ = "__main__"
    pickled: bytes = cloudpickle.dumps(Shim())
    return pickled
