"""What a worker's machine is, read from the machine itself."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

from fpmdask.runtime.identity import Fingerprint


@cache
def cpu_model() -> str:
    """Return the processor's name as the kernel gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux: the platform module knows less but something
    return platform.processor() or platform.machine()


def cpu_quota(
    membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> float | None:
    """Return this process's CPU quota in cores (cgroup v1 or v2), None where there is none.

    It is the smallest of its group's and those of the groups that this one is in. Inside
    ``ip netns exec`` the cgroup file system is hidden, and the answer is None.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = []
    names: tuple[str, ...]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            top, names = root / "cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        elif controllers == "":
            top, names = root, ("cpu.max",)
        else:
            continue
        group = top / path.lstrip("/")
        for parent in (group, *group.parents):
            if not parent.is_relative_to(top):
                break
            files = (parent / name for name in names)
            try:
                quota, period = " ".join(file.read_text(encoding="ascii") for file in files).split()
            except (OSError, ValueError):
                continue
            if quota not in ("max", "-1"):
                found.append(int(quota) / int(period))
    return min(found, default=None)


@cache
def features() -> str:
    """Return the instruction sets that NumPy uses here: some may be switched off by environment."""
    found = np.show_config(mode="dicts")
    simd = found.get("SIMD Extensions", {})
    return " ".join([*simd.get("baseline", ()), *simd.get("found", ())])


def affinity() -> int:
    """Return on how many cores this process may run, 0 where the system does not tell."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return 0


def gpus(driver: Path = Path("/proc/driver/nvidia")) -> str:
    """Return NVIDIA's GPUs that this process sees, and the driver's version; "" for none."""
    try:
        version = (driver / "version").read_text(encoding="utf-8").splitlines()[0].strip()
        texts = [
            (gpu / "information").read_text(encoding="utf-8")
            for gpu in sorted((driver / "gpus").iterdir())
        ]
    except (OSError, IndexError):
        return ""
    models = [
        line.partition(":")[2].strip()
        for text in texts
        for line in text.splitlines()
        if line.startswith("Model")
    ]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = [] if visible is None else [f"visible: {visible}"]
    return "; ".join([*models, version, *chosen])


@cache
def blas() -> tuple[str, str]:
    """Return NumPy's BLAS (library and version) and the core type it runs its kernels for."""
    libraries = [info for info in threadpool_info() if info["user_api"] == "blas"]
    libraries.sort(key=lambda info: "numpy" not in info["filepath"])
    if not libraries:
        return f"unknown (numpy {np.__version__})", "unknown"
    first = libraries[0]
    return f"{first['internal_api']} {first['version']}", str(first.get("architecture", "unknown"))


def fingerprint(nthreads: int, memory_limit: int | None) -> Fingerprint:
    """Return the fingerprint of this process as a worker of ``nthreads`` threads."""
    library, core_type = blas()
    return Fingerprint(
        cpu=cpu_model(),
        blas=library,
        core_type=core_type,
        blas_threads=nthreads,
        nthreads=nthreads,
        quota=cpu_quota(),
        memory_limit=int(memory_limit or 0),
        features=features(),
        affinity=affinity(),
        gpus=gpus(),
    )
