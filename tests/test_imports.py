"""The house: a path says in which process a module runs, and so what it may import."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fpmdask

ROOT = Path(fpmdask.__file__).parent

# What a module of each kind may import of ours; the kind follows from its path alone.
MAY_IMPORT = {
    "pure": {"pure"},
    "dask": {"pure", "dask"},
    "tasks": {"pure", "dask", "tasks", "worker"},
    "worker": {"pure", "dask", "tasks", "worker"},
    "coordinator": {"pure", "dask", "tasks", "coordinator"},
    "client": {"pure", "dask", "tasks", "client"},
}
PROCESSES = ("client", "coordinator", "worker", "tasks")
# These say in their names that they are the bridge: any process has them.
BRIDGE = {("config",), ("runtime", "dask_private"), ("runtime", "installation")}
# Beside the cluster: commands, emulated clusters, pictures, and what a process starts with.
BESIDE = {"cli", "dashboard", "lab", "picture", "preload", "__main__", "__init__"}
# NumPy and SciPy are all that these need.
NUMERICAL = {"models", "timing", "partition", "layout", "mheta", "sorting", "packing", "tuning"}
IMPURE = {"dask", "distributed", "tornado", "asyncio", "socket", "subprocess"}


def modules():
    return sorted(ROOT.rglob("*.py"))


def parts_of(path):
    return path.relative_to(ROOT).with_suffix("").parts


def kind_of(parts):
    """Return the process in which a module runs, "pure" for any."""
    if parts[0] in BESIDE:
        return "beside"
    if parts == ("balancer",):
        return "client"
    if parts in BRIDGE:
        return "dask"
    return next((part for part in parts if part in PROCESSES), "pure")


def executed(node):
    """Yield the nodes of a tree, without what only type checkers see."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            for other in child.orelse:
                yield from executed(other)
        else:
            yield from executed(child)


def imports(path):
    """Yield the absolute names that a module imports when it runs, also inside functions."""
    for node in executed(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def lazy_names(path):
    """Yield the modules that a package loads on first use of their names: `fpmdask.lazy_names`."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            yield from ast.literal_eval(node.value).values()


def named_applications(path):
    """Yield the applications of ours that a module names by the path of a module, in strings."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = re.fullmatch(r"fpmdask\.apps\.(\w+)[.:\w]*", node.value)
            if found:
                yield found[1]


def module_of(name):
    """Return the parts of the module of ours that a dotted name is, or is in; None for others."""
    parts = tuple(name.split("."))
    if parts[0] != "fpmdask":
        return None
    for end in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[1:end])
        if place.with_suffix(".py").is_file() and end > 1:
            return parts[1:end]
        if (place / "__init__.py").is_file():
            return (*parts[1:end], "__init__")
    raise AssertionError(f"found no module {name}")


@pytest.mark.parametrize("path", modules(), ids=lambda path: "/".join(parts_of(path)))
def test_a_module_imports_what_its_process_has(path):
    parts = parts_of(path)
    kind = kind_of(parts)
    if kind == "beside":
        return
    if parts[0] == "apps" and len(parts) > 2:  # the package itself is the registry
        others = {*named_applications(path)} - {parts[1]}
        assert not others, f"{'.'.join(parts)} names modules of {others}"
    for name in set(imports(path)):
        top = name.split(".")[0]
        target = module_of(name)
        if target is None:
            if kind == "pure":
                assert top not in IMPURE, f"{'.'.join(parts)} is pure and imports {name}"
            if parts[0] in NUMERICAL:
                standard = top in sys.stdlib_module_names
                assert standard or top in {"numpy", "scipy"}, f"{'.'.join(parts)} imports {name}"
            continue
        if target == ("__init__",):
            assert name in {"fpmdask", "fpmdask.__version__", "fpmdask.errors"}, f"{name}: {parts}"
            continue
        other = kind_of(target)
        assert other in MAY_IMPORT[kind], f"{'.'.join(parts)} ({kind}) imports {name} ({other})"
        if parts[0] == "runtime":
            assert target[0] not in ("apps", "balancer"), f"the runtime imports {name}"
        if parts[0] == "apps" and target[0] == "apps":
            assert parts[1] == target[1], f"one application imports another: {name} in {parts}"
        if parts[0] in NUMERICAL or parts[0] == "records":
            assert target[0] not in ("runtime", "apps"), f"{'.'.join(parts)} imports {name}"


def test_no_circles():
    """Also not between packages of one process; what only type checkers see does not count."""
    graph = {}
    for path in modules():
        parts = parts_of(path)
        names = [*imports(path), *lazy_names(path)]
        targets = {module_of(name) for name in names} - {None, ("__init__",), parts}
        graph[parts] = targets
    done, doing = set(), []

    def visit(parts):
        if parts in done:
            return
        assert parts not in doing, f"a circle: {doing[doing.index(parts) :]}"
        doing.append(parts)
        for target in graph.get(parts, ()):
            visit(target)
        done.add(doing.pop())

    for parts in graph:
        visit(parts)


def test_the_pure_part_loads_neither_dask_nor_distributed_nor_bokeh():
    pure = ("partition", "layout", "models", "timing", "mheta", "mheta.search", "mheta.instrument")
    code = f"""
import importlib, pkgutil, sys
for name in {pure}:
    package = importlib.import_module("fpmdask." + name)
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
print(*sys.modules)
"""
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"dask", "distributed", "bokeh", "tornado", "matplotlib"} & {
        m.split(".")[0] for m in loaded
    }


def test_workers_measure_iterations_without_what_predicts_them():
    code = (
        "import sys, fpmdask.apps.stencil.worker.instrumented_iteration; print(*sys.modules)"
        "; import fpmdask.mheta; print(fpmdask.mheta.search.gbs, fpmdask.mheta.instrument.fit)"
    )
    loaded, later = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "fpmdask.mheta.instrument.recorder" in loaded.split()
    assert not {
        "scipy",
        "fpmdask.models.measured",
        "fpmdask.mheta.evaluate",
        "fpmdask.mheta.search",
        "fpmdask.mheta.instrument.fitting",
        "fpmdask.partition",
    } & set(loaded.split())
    assert "function gbs" in later
    assert "function fit" in later


def test_importing_fpmdask_loads_nothing_but_itself():
    code = (
        "import sys; before = set(sys.modules); import fpmdask; print(*(set(sys.modules) - before))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    own = {name for name in loaded if name.startswith("fpmdask")}
    assert own == {"fpmdask", "fpmdask.lazy_names"}
    assert not {"numpy", "scipy", "dask", "distributed"} & set(loaded)
    assert fpmdask.Balancer.__name__ == "Balancer"
    assert "Balancer" in dir(fpmdask)
    with pytest.raises(AttributeError, match="nothing"):
        _ = fpmdask.nothing


@pytest.mark.slow
def test_workers_import_what_products_need_and_no_more():
    """On a tenth of a core every 10 ms of CPU are 0.1 s before the first product."""
    code = (
        "import sys, fpmdask.runtime.worker.side, fpmdask.apps.matmul.worker.share; "
        "print([name for name in ('scipy.linalg', 'fpmdask.partition', 'dask.array', 'pandas',"
        " 'fpmdask.runtime.coordinator.context', 'fpmdask.timing.gbbp') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout == "[]\n", answer.stderr


def test_a_worker_starts_without_the_large_parts_of_scipy():
    """They are loaded where they are called; half a second of CPU in every worker process."""
    code = (
        "import importlib, sys, fpmdask.preload, fpmdask.runtime.worker.side; "
        "from fpmdask.apps.matmul.app import APP as matmul; "
        "from fpmdask.apps.sort.app import APP as sort; "
        "[importlib.import_module(name) for app in (matmul, sort) for name in app.worker]; "
        "print([part for part in ('interpolate', 'optimize', 'special', 'fft')"
        " if f'scipy.{part}' in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout == "[]\n", answer.stderr


def test_a_worker_starts_and_iterates_without_models():
    """They, and the rest of scipy, take a sixth of what it imports before a first call."""
    code = (
        "import sys, fpmdask.runtime.worker.side, fpmdask.apps.stencil.worker.iterate; "
        "print([name for name in ('scipy', 'fpmdask.models') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout == "[]\n", answer.stderr
