"""Cluster definitions: what is understood, and how what is not is refused."""

import dataclasses
import runpy
from pathlib import Path

import dask
import pytest
import yaml

from fpmdask.errors import LabError
from fpmdask.lab import Lab, definitions, load
from fpmdask.lab.definition import check_quota
from fpmdask.lab.parsing import parse

WORKERS = Path(__file__).parents[2] / "workers"


@pytest.mark.parametrize("name", definitions())
def test_every_definition_that_comes_along_is_valid(name: str) -> None:
    lab = load(name)
    assert lab.name == name
    assert lab.description
    assert sum(worker.cpu or 0 for worker in lab.workers) < 1.8, "leave the driver some of 2 cores"


def test_hcl6_is_the_benchmark_cluster() -> None:
    lab = Lab.from_toml("hcl6")
    assert [worker.cpu for worker in lab.workers] == [0.40, 0.30, 0.25, 0.20, 0.15, 0.10]
    assert len({worker.name for worker in lab.workers}) == 6


def test_hcl16_keeps_the_ratios_of_the_papers() -> None:
    oracles = yaml.safe_load((Path(__file__).parents[1] / "oracles.json").read_text("utf-8"))
    workers = load("hcl16").workers
    quotas = [worker.cpu for worker in workers if worker.cpu]
    assert quotas == pytest.approx([speed / 1e5 for speed in oracles["hcl_speeds_mflops"]])
    memories = [((worker.memory or 0) / 1e6 - 200) * 4 for worker in workers]
    assert memories == pytest.approx(oracles["hcl_memory_mb_2011"])


# Of an ordinary node of Table 1, and of others; powers are by 0.40 of a core.
ORDINARY, SLOW, FAST = (0.001, 1e-8), (0.002, 2e-8), (0.0005, 5e-9)


@pytest.mark.parametrize(
    ("name", "powers", "disks", "short_of_memory"),
    [
        ("dc", [0.25, 1, 1, 1.75], [ORDINARY] * 4, ()),
        ("io", [1, 1, 1, 1], [SLOW, SLOW, ORDINARY, ORDINARY], (0, 1)),
        ("hy1", [0.5, 0.75, 1, 1], [ORDINARY, ORDINARY, FAST, FAST], (2, 3)),
        ("hy2", [0.5, 1.25, 1, 1], [ORDINARY, ORDINARY, SLOW, ORDINARY], (0, 1, 2)),
    ],
)
def test_the_labs_of_mheta_keep_the_ratios_of_table_1(name, powers, disks, short_of_memory) -> None:
    workers = load(name).workers
    assert [worker.cpu for worker in workers] == pytest.approx([0.4 * power for power in powers])
    assert [(w.disk_overhead, w.disk_seconds_per_byte) for w in workers] == disks
    assert tuple(n for n, w in enumerate(workers) if w.memory is not None) == short_of_memory


def test_one_definition_mixes_thread_counts() -> None:
    assert {worker.nthreads for worker in load("threads").workers} == {1, 2}


def test_the_paging_worker_pages_and_dask_does_not_interfere() -> None:
    workers = load("paging").workers
    assert not any(worker.memory_manager for worker in workers)
    (pager,) = [worker for worker in workers if worker.swap]
    assert pager.memory
    assert pager.memory < pager.swap


@pytest.mark.parametrize(
    "file", sorted((WORKERS / "clusters").glob("*.toml")), ids=lambda f: f.stem
)
def test_definitions_to_copy_are_valid(file: Path) -> None:
    assert load(file).name == file.stem
    assert load(str(file)) == load(file)


def test_the_example_of_every_option_has_them_all() -> None:
    text = (WORKERS / "clusters" / "every-option.toml").read_text("utf-8")
    worker, lab = (
        load(WORKERS / "clusters" / "every-option.toml").workers[1],
        text.split("[dask]")[0],
    )
    for field in dataclasses.fields(worker):
        assert f"\n{field.name} = " in text
    for field in dataclasses.fields(load("hcl6")):
        assert field.name in {"name", "workers", "dask"} or f"{field.name} = " in lab


def test_the_preload_to_copy_is_that_of_the_package() -> None:
    from fpmdask.preload import dask_setup

    assert runpy.run_path(str(WORKERS / "preload.py"))["dask_setup"] is dask_setup


@pytest.mark.parametrize(
    "file", sorted((WORKERS / "profiles").glob("*.yaml")), ids=lambda f: f.stem
)
def test_profiles_set_what_dask_knows(file: Path) -> None:
    def keys(tree: dict, prefix: str = "") -> list[str]:
        found = []
        for key, value in tree.items():
            found += keys(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]
        return found

    import distributed  # noqa: F401 - it brings its part of the configuration

    for key in keys(yaml.safe_load(file.read_text("utf-8"))):
        assert dask.config.get(key, "no such key") != "no such key"


def test_units_defaults_and_environment() -> None:
    lab = parse(
        """
        [lab]
        period = 0.02
        pin = true
        imports = []
        [dask]
        "distributed.worker.profile.enabled" = false
        distributed.comm.timeouts.connect = "60s"
        [defaults]
        nthreads = 2
        environment = { A = "1", B = 2 }
        [[workers]]
        name = "one"
        memory = "1.5 GB"
        rate = "100 Mbit"
        environment = { B = "3" }
        [[workers]]
        name = "two"
        nthreads = 1
        cpu = 1
        affinity = [0]
        memory = 1000
        """,
        name="x",
    )
    one, two = lab.workers
    assert (one.memory, one.rate, one.nthreads, one.cpu) == (1_500_000_000, 100_000_000, 2, None)
    assert one.environment == (("A", "1"), ("B", "3"))
    assert (two.memory, two.cpu, two.affinity, two.nthreads) == (1000, 1.0, (0,), 1)
    assert dict(lab.dask) == {
        "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "60s",
    }
    assert lab.imports == ()
    assert lab.pin
    assert hash(lab)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x =", "not TOML.* correct it there"),
        ("x = " + "[" * 100_000, "not TOML"),
        ("", "no workers"),
        ("workers = []", "no workers"),
        ("[[workers]]", "has no name"),
        ("[[workers]]\nname = 'A'", "lower case"),
        ("[[workers]]\nname = '../a'", "lower case"),
        ("[[workers]]\nname='a'\n[[workers]]\nname='a'", "several workers named a"),
        ("[[workers]]\nname='a'\ncpus=1", "unknown option cpus"),
        ("[lab]\nperiods=1\n[[workers]]\nname='a'", "unknown option periods"),
        ("[labs]\n[[workers]]\nname='a'", "unknown option labs"),
        ("[[workers]]\nname='a'\ncpu=0", "number of cores > 0"),
        ("[[workers]]\nname='a'\ncpu=nan", "number of cores > 0"),
        ("[[workers]]\nname='a'\ncpu=true", "number of cores > 0"),
        ("[[workers]]\nname='a'\ncpu=0.05", "at least 0.02 s"),
        ("[[workers]]\nname='a'\nnthreads=0", "whole number ≥ 1"),
        ("[[workers]]\nname='a'\nnthreads=1.5", "whole number ≥ 1"),
        ("[[workers]]\nname='a'\nnanny='yes'", "true or false"),
        ("[lab]\npin=1\n[[workers]]\nname='a'", "true or false"),
        ("[[workers]]\nname='a'\naffinity=0", "a list"),
        ("[[workers]]\nname='a'\nmemory='1 apple'", "one of the units"),
        ("[[workers]]\nname='a'\nmemory=-1", "one of the units"),
        ("[[workers]]\nname='a'\nmemory='1.2.3 GB'", "one of the units"),
        ("[[workers]]\nname='a'\nmemory=0", "memory of worker 'a'"),
        ("[[workers]]\nname='a'\nrate='1 GB'", "one of the units"),
        ("[[workers]]\nname='a'\nswap='1 GB'", "give it memory too"),
        ("[[workers]]\nname='a'\ndisk_overhead=-1", "number of seconds, 0 to 10"),
        ("[[workers]]\nname='a'\ndisk_overhead='1 ms'", "number of seconds, 0 to 10"),
        ("[[workers]]\nname='a'\ndisk_seconds_per_byte=nan", "number of seconds, 0 to 0.001"),
        ("[lab]\nbackend='docker'\n[[workers]]\nname='a'", "auto, root, duty-cycle"),
        ("[lab]\nscheduler='moon'\n[[workers]]\nname='a'", "host, namespace"),
        ("[lab]\nperiod=2\n[[workers]]\nname='a'", "0.001 to 1 s"),
        ("[lab]\nperiod='1'\n[[workers]]\nname='a'", "number of seconds"),
        ("[lab]\nimports='numpy'\n[[workers]]\nname='a'", "list of texts"),
        ("[lab]\nimports=['os; print()']\n[[workers]]\nname='a'", "module"),
        ("[lab]\ndashboard=1\n[[workers]]\nname='a'", "true or false"),
        ("[[workers]]\nname='a'\npreload=[1]", "list of texts"),
        ("[[workers]]\nname='a'\naffinity=['0']", "list of CPU numbers"),
        ("[[workers]]\nname='a'\nenvironment=1", "environment"),
        ("lab = 1\n[[workers]]\nname='a'", "must be a table"),
        ("[[workers]]\nname='scheduler'", "scheduler"),
    ],
)
def test_what_cannot_be_is_refused(source: str, words: str) -> None:
    with pytest.raises(LabError, match=words):
        parse(source, name="x")


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(LabError, match=r"'hcl7'.*hcl16, hcl6"):
        load("hcl7")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", "hcl6/../hcl6", "missing.toml"])
def test_names_do_not_wander(name: str) -> None:
    with pytest.raises(LabError):
        load(name)


def test_names_of_labs_are_checked() -> None:
    with pytest.raises(LabError, match="lower case"):
        load("hcl6", name="../x")


@pytest.mark.parametrize("cores", [0.0, -1.0, float("nan"), float("inf"), 0.01])
def test_quotas_that_the_kernel_refuses(cores: float) -> None:
    with pytest.raises(LabError, match="w1"):
        check_quota(cores, 0.01, "w1")


def test_a_lab_that_is_not_up_says_so() -> None:
    lab = Lab.from_toml("hcl6")
    for attribute in ("scheduler_address", "pids", "backend", "state"):
        with pytest.raises(LabError, match="not up"):
            getattr(lab, attribute)
    with pytest.raises(LabError, match="no worker is named 'w9'; this lab has w1, w2"):
        lab.set_quota("w9", 1)
    with pytest.raises(LabError, match="allowed are auto"):
        Lab.from_toml("hcl6", backend="docker")
    lab.down()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x =", "not TOML"),
        (b"[[workers]]", "has no name"),
        (b"[[workers]]\nname='a'\ncpu=0", "number of cores"),
        (b"\xff", "not text in UTF-8"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_path(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(LabError, match=words) as refused:
        load(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("definition", ["demo4", WORKERS / "clusters" / "two-speeds.toml"])
def test_an_empty_name_is_refused(definition: str | Path) -> None:
    with pytest.raises(LabError, match="'' cannot name the lab; allowed are 1 to 32"):
        load(definition, name="")
