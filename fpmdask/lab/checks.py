"""What this machine allows a lab to do, found by trying, and how to get the rest."""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from fpmdask.errors import LabError
from fpmdask.lab import cgroups, network, swap
from fpmdask.lab.commands import run, tool

_TOOLS = ("ip", "tc", "nsenter", "unshare", "mkswap", "swapon", "swapoff")
_SWAP_TRIAL_BYTES = 1 << 20
_WITHOUT = "the lab then uses its duty cycle, which works without"
_AS_ROOT = f"run as root, in a container with the capabilities SYS_ADMIN and NET_ADMIN; {_WITHOUT}"


@dataclass(frozen=True)
class Check:
    """One thing that a lab wants from the machine.

    Parameters
    ----------
    name : str
        The thing.
    ok : bool
        Whether it is there, or nothing needs it.
    found : str
        What was found.
    cure : str
        What to do if it is not; empty if nothing.
    """

    name: str
    ok: bool
    found: str
    cure: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        return asdict(self)


def doctor() -> tuple[Check, ...]:
    """Try everything that a lab may use and say what works here.

    Returns
    -------
    tuple of Check
        In the order in which they are best read.

    Notes
    -----
    What it makes (a namespace, two control groups, 1 MiB of swap) it removes before it returns.
    """
    checks = (_root, _tools, _namespace, _links, _tbf, _netem, _bridged)
    groups = (_cpu_groups, _memory_groups, _block_groups, _swap_accounting, _swap_file)
    rest = (_duty_cycle, _cores, _memory, _blas, _versions)
    return tuple(check() for check in (*checks, *groups, *rest))


def _root() -> Check:
    user = os.geteuid()
    cure = f"run as root, for example with sudo; {_WITHOUT}"
    return Check("root", user == 0, "root" if user == 0 else f"user {user}", cure if user else "")


def _tools() -> Check:
    missing = [name for name in _TOOLS if tool(name) is None]
    if not missing:
        return Check("tools", True, ", ".join(_TOOLS))
    cure = "install the packages iproute2 and util-linux"
    return Check("tools", False, f"missing: {', '.join(missing)}", cure)


def _namespace() -> Check:
    name = f"fpmtrial{secrets.token_hex(3)}"

    def trial() -> None:
        try:
            run(("ip", "netns", "add", name))
        finally:
            if (Path("/run/netns") / name).exists():
                run(("ip", "netns", "delete", name))

    return _try("network namespaces", trial, "one was made and deleted", _AS_ROOT)


def _links() -> Check:
    lines = network.TRIAL.strip().splitlines()
    return _in_namespace(
        "bridge and veth",
        "\n".join(lines[:3]),
        "a bridge and a veth pair were made",
        f"load the kernel modules bridge and veth (modprobe bridge veth); {_WITHOUT}",
    )


def _tbf() -> Check:
    return _in_namespace(
        "tc tbf",
        network.TRIAL,
        "a link was limited to 100 Mbit/s",
        "load the kernel module sch_tbf; without it leave `rate` out of the definition",
    )


def _netem() -> Check:
    script = network.TRIAL.replace("tbf rate 100mbit burst 128kb latency 100ms", "netem delay 1ms")
    check = _in_namespace("tc netem", script, "a link was delayed by 1 ms", "")
    # Rates are tbf's; no definition asks for delays.
    return check if check.ok else Check("tc netem", True, "not available; nothing needs it")


def _bridged() -> Check:
    """Find a firewall that drops what the bridge forwards from worker to worker."""
    seen, policy = False, ""
    with contextlib.suppress(OSError):
        file = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
        seen = file.read_text("ascii").strip() == "1"
    if seen and tool("iptables") is not None:
        with contextlib.suppress(LabError):
            policy = run(("iptables", "-S", "FORWARD"))
    if "-P FORWARD DROP" not in policy:
        return Check("firewall", True, "it lets the bridge forward")
    cure = "iptables -I FORWARD -s 10.64.0.0/10 -d 10.64.0.0/10 -j ACCEPT"
    return Check("firewall", "10.64.0.0/10" in policy, "iptables drops what is forwarded", cure)


def _cpu_groups() -> Check:
    return _groups("cpu", (("quota of 0.1 core", 0.1),))


def _memory_groups() -> Check:
    return _groups("memory", ())


def _groups(controller: str, quotas: tuple[tuple[str, float], ...]) -> Check:
    name = f"control groups: {controller}"
    found = cgroups.find(controller)
    if found is None:
        cure = (
            f"mount the cgroup controller {controller!r} (systemd does, see cgroups(7)); {_WITHOUT}"
        )
        return Check(name, False, "not mounted", cure)
    hierarchy = found
    group = hierarchy.root / f"fpmtrial{secrets.token_hex(3)}"

    def trial() -> None:
        try:
            cgroups.create(group, [hierarchy])
            if quotas:
                cgroups.write(cgroups.cpu_plan(hierarchy, group, quotas[0][1], 0.010))
            else:
                cgroups.write(cgroups.memory_plan(hierarchy, group, 1 << 30, 0)[:1])
        finally:
            cgroups.remove(group)

    said = f"version {hierarchy.version} in {hierarchy.root}; a group was made, limited and removed"
    return _try(name, trial, said, f"needs root and a writable {hierarchy.root}; {_WITHOUT}")


def _block_groups() -> Check:
    found = cgroups.find("blkio") or cgroups.find("io")
    if found is not None:
        return Check("control groups: block I/O", True, f"version {found.version} in {found.root}")
    return Check("control groups: block I/O", True, "missing; no definition limits disks")


def _swap_accounting() -> Check:
    found = cgroups.find("memory")
    name = "swap accounting"
    if found is not None:
        pattern = "memory.memsw.limit_in_bytes" if found.version == 1 else "*/memory.swap.max"
        if next(found.root.glob(pattern), None) is not None:
            return Check(name, True, "swap is limited per control group")
    cure = "boot with swapaccount=1; without it a worker's swap is not limited"
    return Check(name, False, "the memory groups do not account for swap", cure)


def _swap_file() -> Check:
    reasons = []
    for folder in swap.folders():
        file = folder / f"fpmtrial{secrets.token_hex(3)}.swap"
        try:
            try:
                swap.make(file, _SWAP_TRIAL_BYTES)
            finally:
                swap.remove(file)
        except LabError as error:
            reasons.append(_brief(error))
        else:
            return Check("swap file", True, f"1 MiB of swap was made in {folder} and removed")
    cure = "needs root and a local disk; without swap leave `swap` out of the definition"
    return Check("swap file", False, reasons[0], cure)


def _duty_cycle() -> Check:
    """Stop and continue a child, and read its CPU clock."""
    child = subprocess.Popen(["sleep", "60"])
    try:
        time.clock_gettime((~child.pid << 3) | 2)
        child.send_signal(signal.SIGSTOP)
        child.send_signal(signal.SIGCONT)
    except OSError as error:
        return Check("duty cycle", False, str(error), "allow CPU clocks of one's own processes")
    finally:
        child.kill()
        child.wait()
    return Check("duty cycle", True, "a process was stopped and continued, its CPU clock read")


def _cores() -> Check:
    count = len(os.sched_getaffinity(0))
    ok = count >= 2
    cure = "" if ok else "hcl6 wants 1.4 cores and the driver the rest; lower its quotas"
    return Check("cores", ok, f"{count} usable", cure)


def _memory() -> Check:
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    size = {line.split(":")[0]: int(line.split()[1]) / 1e6 for line in lines}
    found = f"{size['MemAvailable']:.1f} of {size['MemTotal']:.1f} GB available"
    ok = size["MemAvailable"] >= 4
    return Check("memory", ok, found, "" if ok else "six workers and a product need about 4 GB")


def _blas() -> Check:
    import numpy as np
    from threadpoolctl import threadpool_info

    np.ones((2, 2)) @ np.ones((2, 2))
    found = [
        f"{pool['internal_api']} {pool['version']} ({pool.get('architecture', '?')}), "
        f"{pool['num_threads']} threads"
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    ]
    if found:
        return Check("BLAS", True, "; ".join(dict.fromkeys(found)))
    cure = "its threads are then set by environment only; install NumPy with OpenBLAS or MKL"
    return Check("BLAS", False, "none that threadpoolctl knows", cure)


def _versions() -> Check:
    names = ("dask", "distributed", "numpy", "scipy")
    found = [f"Python {platform.python_version()}", f"Linux {platform.release()}"]
    found += [f"{name} {metadata.version(name)}" for name in names]
    return Check("versions", True, ", ".join(found))


def _in_namespace(name: str, script: str, said: str, cure: str) -> Check:
    try:
        run(("unshare", "--net", "true"))
    except LabError as error:  # not even the namespace, so nothing is known of the rest
        return Check(name, False, _brief(error), _AS_ROOT)
    return _try(name, lambda: run(("unshare", "--net", "sh", "-ec", script)), said, cure)


def _try(name: str, trial: Callable[[], object], said: str, cure: str) -> Check:
    try:
        trial()
    except LabError as error:
        return Check(name, False, _brief(error), cure)
    return Check(name, True, said)


def _brief(error: LabError) -> str:
    """Return why a tool failed, on one line, without the pointer to this very command."""
    text = " ".join(str(error).split(";")[0].split())
    return text.rpartition(" failed: ")[2]
