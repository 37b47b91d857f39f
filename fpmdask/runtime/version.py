"""One version of fpmdask everywhere, or a clear refusal. Pure."""

import fpmdask
from fpmdask.errors import VersionMismatchError

# The name of the plugins of schedulers and workers.
PLUGIN = "fpmdask"
# In a worker's heartbeats: address of another one → bytes received from it.
RECEIVED = "fpmdask_received"


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
