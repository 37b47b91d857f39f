"""The fingerprint changes with what makes a worker faster or slower."""

import os
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest

from fpmdask.models import PiecewiseLinearModel
from fpmdask.runtime.identity import Fingerprint
from fpmdask.runtime.known_models import KnownModel
from fpmdask.runtime.worker.fingerprint import affinity, cpu_quota, features, fingerprint, gpus
from fpmdask.store.document import path_of


def written(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_smallest_quota_of_a_group_and_its_parents_counts(tmp_path):
    membership, root = tmp_path / "cgroup", tmp_path / "fs"
    written(membership, "0::/pod/box/worker\n")
    assert cpu_quota(membership, root) is None
    written(root / "pod/box/worker/cpu.max", "max 100000\n")
    assert cpu_quota(membership, root) is None
    written(root / "pod/cpu.max", "50000 100000\n")
    assert cpu_quota(membership, root) == 0.5
    written(root / "pod/box/cpu.max", "25000 100000\n")
    assert cpu_quota(membership, root) == 0.25
    # version 1
    written(membership, "4:cpu,cpuacct:/pod/box\n")
    written(root / "cpu/pod/box/cpu.cfs_quota_us", "-1\n")
    written(root / "cpu/pod/box/cpu.cfs_period_us", "10000\n")
    assert cpu_quota(membership, root) is None
    written(root / "cpu/pod/cpu.cfs_quota_us", "7500\n")
    written(root / "cpu/pod/cpu.cfs_period_us", "10000\n")
    assert cpu_quota(membership, root) == 0.75


def test_gpus_and_their_driver_are_in_it(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus(tmp_path) == ""
    written(tmp_path / "version", "NVRM version: 550.54\nGCC version: 12\n")
    written(tmp_path / "gpus/0000:01/information", "Model: \t Some GPU\nIRQ: 9\n")
    assert gpus(tmp_path) == "Some GPU; NVRM version: 550.54"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpus(tmp_path).endswith("; visible: 1")


def test_a_narrower_affinity_mask_is_seen():
    before = os.sched_getaffinity(0)
    assert affinity() == len(before)
    if len(before) < 2:
        pytest.skip("there is one core")
    code = "from fpmdask.runtime.worker.fingerprint import affinity; print(affinity())"
    os.sched_setaffinity(0, {min(before)})
    try:
        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    finally:
        os.sched_setaffinity(0, before)
    assert answer.stdout == "1\n"


@pytest.mark.slow
def test_instruction_sets_that_are_switched_off_are_seen():
    simd = np.show_config(mode="dicts")["SIMD Extensions"]
    found = simd.get("found", [])
    if not found:
        pytest.skip("NumPy uses nothing here that could be switched off")
    code = "from fpmdask.runtime.worker.fingerprint import features; print(features())"
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(found)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert answer.stdout.split() == simd["baseline"]
    assert features().split() == [*simd["baseline"], *found]


def test_all_of_it_but_the_memory_limit_decides_where_models_are_stored():
    mine = fingerprint(1, 10**9)
    assert Fingerprint.from_json(mine.to_json()) == mine
    model = PiecewiseLinearModel.from_points([1], [1.0])

    def place(hardware):
        return path_of(KnownModel("a", "sort.local", "", "{}", hardware, True, model))

    for one in fields(mine):
        value = getattr(mine, one.name)
        other = replace(mine, **{one.name: f"{value}x" if isinstance(value, str) else 77})
        assert (place(other) == place(mine)) == (one.name == "memory_limit"), one.name
