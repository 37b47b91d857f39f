"""The two ways of making workers unequal, behind one interface."""

from __future__ import annotations

import os
from typing import Protocol

from fpmdask.errors import LabError
from fpmdask.lab import cgroups, network, swap
from fpmdask.lab.commands import run, tool
from fpmdask.lab.definition import LabDefinition
from fpmdask.lab.processes import Process
from fpmdask.lab.state import Ledger, recorded


class Backend(Protocol):
    """How a lab's workers get their place, their processor and their memory."""

    def prepare(self) -> None:
        """Make what the lab needs before its first process."""

    def address(self, node: str) -> str:
        """Return the address that a node listens on."""

    def command(self, node: str) -> tuple[str, ...]:
        """Return what is put before a node's command line."""

    def place(self, process: Process) -> None:
        """Put a worker's process, not yet begun, where it belongs."""

    def set_quota(self, worker: str, cores: float | None) -> None:
        """Give a worker that many CPU-seconds per second; None takes the quota away."""


class RootBackend:
    """Network namespaces and control groups.

    Parameters
    ----------
    definition : LabDefinition
        What to make.
    ledger : Ledger
        Where everything is recorded before it is made.
    """

    def __init__(self, definition: LabDefinition, ledger: Ledger) -> None:
        self._definition = definition
        self._ledger = ledger
        self._cpu = _hierarchy("cpu")
        self._memory = _hierarchy("memory")
        self._group = f"fpmdask-{definition.name}-{ledger.state.identity}"
        taken = network.routes() + tuple(
            network.Network(state.network) for _, state in recorded() if state.network
        )
        self._network = network.choose_network(taken, ledger.state.identity)
        links = network.plan_links(
            ledger.state.identity,
            self._network,
            [(worker.name, worker.rate) for worker in definition.workers],
            scheduler=definition.scheduler == "namespace",
        )
        self._links = {link.node: link for link in links}
        ledger.record(network=str(self._network))

    def prepare(self) -> None:
        """Make the swap file, the bridge, and each node's namespace and groups."""
        wanted = sum(worker.swap for worker in self._definition.workers)
        if wanted:
            self._make_swap(wanted)
        bridge = network.bridge_name(self._ledger.state.identity)
        self._ledger.record(bridge=bridge)
        for command in network.bridge_commands(bridge, self._network):
            run(command)
        for link in self._links.values():
            self._ledger.record(namespaces=(link.namespace,), veths=(link.veth,))
            for command in network.link_commands(bridge, link, self._network.prefixlen):
                run(command)
        self._make_groups(None)
        # By default all workers together would weigh as one process beside those of others.
        lab, count = self._cpu.root / self._group, len(self._definition.workers)
        cgroups.write(cgroups.weight_plan(self._cpu, lab, count))
        for worker in self._definition.workers:
            self._make_groups(worker.name)
            if worker.memory is not None:
                group = self._memory.root / self._group / worker.name
                cgroups.write(cgroups.memory_plan(self._memory, group, worker.memory, worker.swap))

    def address(self, node: str) -> str:
        """Return the node's own address; the bridge's for a scheduler beside the driver."""
        return self._links[node].address if node in self._links else str(self._network[1])

    def command(self, node: str) -> tuple[str, ...]:
        """Return the command that enters the node's network namespace.

        Notes
        -----
        ``nsenter`` rather than ``ip netns exec``: the latter mounts /sys anew, and the worker no
        longer sees the control groups that it lives in.
        """
        link = self._links.get(node)
        return ("nsenter", f"--net=/run/netns/{link.namespace}", "--") if link else ()

    def place(self, process: Process) -> None:
        """Put a process into its worker's groups."""
        worker = process.role.removeprefix("worker ")
        for group in cgroups.groups([self._cpu, self._memory], self._group, worker):
            cgroups.write(((group / "cgroup.procs", str(process.pid)),))

    def set_quota(self, worker: str, cores: float | None) -> None:
        """Write the CPU quota."""
        group = self._cpu.root / self._group / worker
        cgroups.write(cgroups.cpu_plan(self._cpu, group, cores, self._definition.period))

    def _make_groups(self, worker: str | None) -> None:
        both = [self._cpu, self._memory]
        for group in cgroups.groups(both, self._group, worker):
            self._ledger.record(groups=(str(group),))
            cgroups.create(group, both)

    def _make_swap(self, nbytes: int) -> None:
        reasons = []
        for folder in swap.folders():
            file = folder / f"fpmdask-{self._ledger.state.identity}.swap"
            self._ledger.record(swap_files=(str(file),))
            try:
                swap.make(file, nbytes)
            except LabError as error:
                reasons.append(str(error))
                swap.remove(file)
            else:
                return
        raise LabError(
            f"no folder can hold {nbytes} bytes of swap: {'; '.join(reasons)}; take the swap out "
            "of the definition or use a machine with a local disk"
        )


class DutyCycleBackend:
    """SIGSTOP and SIGCONT on loopback: for ordinary users and containers.

    Parameters
    ----------
    definition : LabDefinition
        What to make.
    ledger : Ledger
        Where everything is recorded before it is made.
    """

    def __init__(self, definition: LabDefinition, ledger: Ledger) -> None:
        for worker in definition.workers:
            if worker.nanny:
                raise LabError(
                    f"worker {worker.name!r} has a nanny, which the duty cycle would stop in place "
                    "of the worker; set nanny = false or run as root"
                )
            lost = [
                text
                for text, asked in (
                    ("its memory limit is Dask's only, it does not page", worker.swap),
                    ("its link is not limited", worker.rate),
                )
                if asked
            ]
            ledger.record(notes=tuple(f"{worker.name}: {text}" for text in lost))
        self._ledger = ledger

    def prepare(self) -> None:
        """Make nothing: there is nothing to make."""

    def address(self, node: str) -> str:
        """Return the loopback address: nodes differ by port."""
        return "127.0.0.1"

    def command(self, node: str) -> tuple[str, ...]:
        """Return nothing: the node runs where the driver runs."""
        return ()

    def place(self, process: Process) -> None:
        """Leave the process where it is."""

    def set_quota(self, worker: str, cores: float | None) -> None:
        """Leave it to the watch, which reads the quotas from the state."""


def why_not_root() -> str | None:
    """Return why the root backend cannot work here, or None if it can.

    Notes
    -----
    It tries namespaces, a bridge, a veth pair and tbf in a nameless network namespace, which
    goes with the process that has it.
    """
    if os.geteuid() != 0:
        return "this user is not root"
    for name in ("ip", "tc", "nsenter", "unshare"):
        if tool(name) is None:
            return f"the tool {name!r} is not installed"
    for controller in ("cpu", "memory"):
        hierarchy = cgroups.find(controller)
        if hierarchy is None:
            return f"no {controller} control groups are mounted"
        if (reason := cgroups.usable(hierarchy)) is not None:
            return reason
    try:
        run(("unshare", "--net", "sh", "-ec", network.TRIAL))
    except LabError as error:
        return str(error)
    return None


def choose(wanted: str) -> str:
    """Return the backend for this machine: ``"root"`` or ``"duty-cycle"``.

    Parameters
    ----------
    wanted : {"auto", "root", "duty-cycle"}
        ``"auto"`` takes root's if it can work.

    Raises
    ------
    LabError
        If root's is asked for and cannot work.
    """
    if wanted == "duty-cycle":
        return wanted
    reason = why_not_root()
    if reason is None:
        return "root"
    if wanted == "root":
        raise LabError(
            f"backend 'root' cannot work here: {reason}; `fpmdask doctor` says what is missing, "
            "and backend 'duty-cycle' works without"
        )
    return "duty-cycle"


def _hierarchy(controller: str) -> cgroups.Hierarchy:
    found = cgroups.find(controller)
    if found is None:
        raise LabError(
            f"no {controller} control groups are mounted; `fpmdask doctor` says how to get them"
        )
    return found
