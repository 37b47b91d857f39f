"""One frozen value of thresholds is passed in; tests pass another one and patch no constant."""

import ast
import importlib
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import dask
import pytest
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask import config
from fpmdask.apps.matmul.app import APP
from fpmdask.errors import PartitionError
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.tuning import DEFAULT, MatmulTuning, RuntimeTuning, Tuning
from tests.eventually import side_of
from tests.tuned import tuned

TESTS = Path(__file__).parent
SHORT = {"hang": 1.0, "deadline": 1.0}


def every():
    """Yield the group, the class and the field of every threshold."""
    for group in fields(Tuning):
        for one in fields(getattr(DEFAULT, group.name)):
            yield group.name, type(getattr(DEFAULT, group.name)), one


def test_a_tuning_is_frozen_and_says_what_differs():
    assert DEFAULT.to_json() == {}
    assert Tuning.from_mapping({}) == DEFAULT
    with pytest.raises(FrozenInstanceError):
        DEFAULT.runtime.join_seconds = 1.0
    made = replace(DEFAULT, runtime=RuntimeTuning(most_attempts=3, retry_seconds=0))
    assert made.to_json() == {"runtime": {"most_attempts": 3, "retry_seconds": 0.0}}
    assert Tuning.from_mapping(made.to_json()) == made
    assert made.matmul is DEFAULT.matmul


@pytest.mark.parametrize(("group", "kind", "one"), [*every()])
def test_every_threshold_survives_plain_data_and_refuses_what_is_no_number(group, kind, one):
    spelt = one.name.replace("_", "-")
    for name in (one.name, spelt):
        made = Tuning.from_mapping({group: {name: one.default + 1}})
        value = getattr(getattr(made, group), one.name)
        assert value == one.default + 1
        assert type(value) is type(one.default)
        assert Tuning.from_mapping(made.to_json()) == made
    wrong = [-1, float("nan"), float("inf"), True, "12", None]
    if isinstance(one.default, int):
        wrong.append(one.default + 0.5)
    says = f"fpmdask.tuning.{group}.{spelt} = .*; give a .* number >=? 0, such as {one.default}"
    for value in wrong:
        with pytest.raises(PartitionError, match=says.replace("+", r"\+")):
            kind(**{one.name: value})


def test_what_a_loop_or_a_cut_needs_is_not_0():
    assert MatmulTuning(probed_nbytes=0).probed_nbytes == 0
    with pytest.raises(PartitionError, match="panel-depth = 0; give a whole number > 0, such as"):
        MatmulTuning(panel_depth=0)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"matmult": {}}, r"found fpmdask.tuning.matmult, .*; the nearest names are matmul"),
        ({"matmul": {"panel-dept": 1}}, r"matmul.panel-dept, .* nearest names are panel-depth"),
        ({"matmul": 3}, r"fpmdask.tuning.matmul = 3; give a mapping of some of probed-nbytes"),
        ([], r"fpmdask.tuning = \[\]; give a mapping of some of runtime, matmul"),
        ({"matmul": {"panel-depth": 1, "panel_depth": 1}}, "panel-depth twice, with - and with _"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(data, says):
    with pytest.raises(PartitionError, match=says):
        Tuning.from_mapping(data)


def test_it_is_read_from_the_configuration():
    assert config.tuning() == DEFAULT
    with dask.config.set(tuned(matmul={"panel_depth": 7})):
        assert config.tuning() == replace(DEFAULT, matmul=MatmulTuning(panel_depth=7))
    with dask.config.set({"fpmdask.tuning": {"matmul": {"panel_depth": 7}}}):
        assert config.tuning().matmul.panel_depth == 7


@gen_cluster(client=True)
async def test_the_schedulers_stays_and_reaches_its_workers(c, s, a, b, tuning):
    tuning(matmul={"panel_depth": 7})
    await fpmdask.Balancer(c)
    tuning(matmul={"panel_depth": 9})
    await fpmdask.Balancer(c)
    coordinator = s.plugins["fpmdask"]
    assert coordinator.tuning.matmul.panel_depth == 7
    context = RunContext(
        coordinator, "run", c.id, {"measuring": {"hang": 1.0, "deadline": 1.0}}, APP
    )
    await context.acquire(None)
    side = await side_of(a)
    assert side.spaces["run"].tuning == side.tuning == context.tuning == coordinator.tuning
    await context.close()


@gen_cluster(client=True)
async def test_a_scheduler_refuses_one_that_cannot_be(c, s, a, b, tuning):
    tuning(matmul={"panel_depth": 0})
    with pytest.raises(PartitionError, match="panel-depth = 0; give a whole number > 0"):
        await fpmdask.Balancer(c)
    tuning(matmul={"panel_depth": 1})
    await fpmdask.Balancer(c)
    assert s.plugins["fpmdask"].tuning.matmul.panel_depth == 1


# ---- no test patches a constant of ours


def patched_constants(source):
    """Yield (line, what) for each constant of a module of ours that a test's source patches."""
    tree = ast.parse(source)
    modules = dict(_imported(tree))
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr == "setattr" and node.args:
            yield from _patched(node, modules)


def _imported(tree):
    """Yield the names of modules of ours in a test, and what they name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("fpmdask"):
                    yield alias.asname or alias.name, alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fpmdask"):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _patched(node, modules):
    target, *others = node.args
    if isinstance(target, ast.Constant) and isinstance(target.value, str):
        place, _, name = target.value.rpartition(".")
    elif others and isinstance(others[0], ast.Constant):
        place, name = ast.unparse(target), others[0].value
    else:
        return
    first, _, rest = place.partition(".")
    place = f"{modules.get(first, first)}.{rest}".rstrip(".")
    if not isinstance(name, str) or not name.isupper() or not place.startswith("fpmdask"):
        return
    try:
        importlib.import_module(place)
    except ModuleNotFoundError:
        return  # a class
    yield node.lineno, f"{place}.{name}"


@pytest.mark.parametrize(
    "path", sorted(TESTS.rglob("*.py")), ids=lambda p: str(p.relative_to(TESTS))
)
def test_no_test_patches_a_constant(path):
    found = [*patched_constants(path.read_text(encoding="utf-8"))]
    assert not found, "make it a field of fpmdask.tuning.Tuning, or an argument"


def test_patched_constants_are_found():
    source = (
        "import fpmdask.packing\n"
        "from fpmdask.apps.matmul import plan\n"
        "from fpmdask.apps.matmul.stealing import Stealing\n"
        "def test(monkeypatch):\n"
        '    monkeypatch.setattr(plan, "PANEL_NBYTES", 1)\n'
        "    with monkeypatch.context() as patch:\n"
        '        patch.setattr("fpmdask.apps.matmul.plan._PRIVATE", 1)\n'
        '    monkeypatch.setattr(fpmdask.packing, "BLOCK", 1)\n'
        '    monkeypatch.setattr(plan, "panels", 1)\n'
        '    monkeypatch.setattr(Stealing, "EVER", 1)\n'
        '    monkeypatch.setattr(others, "PANEL_NBYTES", 1)\n'
    )
    assert sorted(patched_constants(source)) == [
        (5, "fpmdask.apps.matmul.plan.PANEL_NBYTES"),
        (7, "fpmdask.apps.matmul.plan._PRIVATE"),
        (8, "fpmdask.packing.BLOCK"),
    ]
