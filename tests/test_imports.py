"""The house: what may import what, and that the pure part and `import fpmdask` stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fpmdask

ROOT = Path(fpmdask.__file__).parent
PURE = {"models", "timing", "partition", "layout", "mheta", "store", "errors", "packing", "tuning"}

# floor → the floors it may import (itself and errors are always allowed)
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "tuning": set(),
    "models": set(),
    "timing": {"models", "tuning"},
    "partition": {"models"},
    "mheta": {"models", "partition"},
    "layout": {"partition", "models"},
    "rawio": set(),
    "packing": set(),
    "runtime": {"tuning"},
    "records": {"rawio", "packing"},
    "coordinator": {
        "tuning",
        "models",
        "timing",
        "partition",
        "layout",
        "mheta",
        "store",
        "__init__",
        "rawio",
        "runtime",
    },
    "apps.pure": {
        "models",
        "timing",
        "partition",
        "layout",
        "mheta",
        "records",
        "packing",
        "tuning",
    },
    "apps.run": {
        "tuning",
        "models",
        "timing",
        "partition",
        "coordinator",
        "records",
        "packing",
        "runtime",
    },
    "balancer": {"models", "timing", "partition", "coordinator", "apps", "runtime"},
    "preload": {"coordinator", "balancer", "runtime"},
    "lab": set(),
    "picture": {"models", "coordinator", "mheta"},
    "__init__": {"balancer", "lab"},
    "__main__": {"cli"},
}
EXTERNAL_TO_PURE = {"numpy", "scipy"}
# An application's kernel and plan are pure; these modules of it talk to Dask or pandas.
DASK_SIDE = {
    "run",
    "share",
    "arrays",
    "attempt",
    "carried",
    "client",
    "conversions",
    "delivery",
    "distribute",
    "encode",
    "fetch",
    "frames",
    "handing",
    "helping",
    "homes",
    "labels",
    "loading",
    "inputs",
    "learned",
    "stored",
    "sum_tasks",
    "summed",
    "product",
    "ranges",
    "relay",
    "rows",
    "runs",
    "shares",
    "sorting",
    "state",
    "survey",
    "target",
    "whereabouts",
}


def modules():
    return sorted(ROOT.rglob("*.py"))


def floor_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] != "apps":
        return parts[0]
    dask_side = parts[-1] in DASK_SIDE or parts == ("apps", "partition")
    return "apps.run" if dask_side else "apps.pure"


def imports(path):
    """Yield the absolute names that a module imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            if node.module == "fpmdask":
                yield from (f"fpmdask.{alias.name}" for alias in node.names)
            else:
                yield str(node.module)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down_only(path):
    floor = floor_of(path)
    if floor == "cli":
        return  # the command line may import anything
    allowed = ALLOWED[floor]
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top == "fpmdask":
            target = rest.split(".")[0] if rest else "__init__"
            if target.startswith("__version__"):
                continue
            own = floor.split(".")[0]
            if own == "apps" and target == "apps":
                continue
            assert target in allowed | {own, "errors"}, f"{floor} imports {name}"
        elif floor in PURE or floor == "apps.pure":
            standard = top in sys.stdlib_module_names
            assert standard or top in EXTERNAL_TO_PURE, f"{floor}, which is pure, imports {name}"


def test_every_floor_is_in_the_table():
    floors = {floor_of(path) for path in modules()}
    assert floors <= ALLOWED.keys() | {"cli"}


def test_the_pure_part_loads_neither_dask_nor_distributed_nor_bokeh():
    pure = ("partition", "layout", "models", "timing", "mheta", "mheta.search", "mheta.instrument")
    code = (
        f"import sys; import {', '.join('fpmdask.' + name for name in pure)}; print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"dask", "distributed", "bokeh", "tornado", "matplotlib"} & {
        m.split(".")[0] for m in loaded
    }


def test_importing_fpmdask_loads_nothing_but_itself():
    code = (
        "import sys; before = set(sys.modules); import fpmdask; print(*(set(sys.modules) - before))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name for name in loaded if name.startswith("fpmdask")} == {"fpmdask"}
    assert not {"numpy", "scipy", "dask", "distributed"} & set(loaded)
    assert fpmdask.Balancer.__name__ == "Balancer"
    assert "Balancer" in dir(fpmdask)
    with pytest.raises(AttributeError, match="nothing"):
        _ = fpmdask.nothing


@pytest.mark.slow
def test_workers_import_what_products_need_and_no_more():
    """On a tenth of a core every 10 ms of CPU are 0.1 s before the first product."""
    code = (
        "import sys, fpmdask.coordinator.worker, fpmdask.apps.matmul.share; "
        "print([name for name in ('scipy.linalg', 'fpmdask.partition', 'dask.array', 'pandas',"
        " 'fpmdask.coordinator.context', 'fpmdask.timing.gbbp') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout == "[]\n", answer.stderr


def test_a_worker_starts_without_the_large_parts_of_scipy():
    """They are loaded where they are called; half a second of CPU in every worker process."""
    code = (
        "import importlib, sys, fpmdask.preload, fpmdask.coordinator.worker, fpmdask.balancer; "
        "[importlib.import_module(n) for own in fpmdask.balancer.TASKS.values() for n in own]; "
        "print([part for part in ('interpolate', 'optimize', 'special', 'fft')"
        " if f'scipy.{part}' in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout == "[]\n", answer.stderr
