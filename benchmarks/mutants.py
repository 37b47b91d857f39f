"""How many small faults the tests notice: a sample of mutants of the pure packages.

cosmic-ray (`pip install cosmic-ray`) changes one place of a copy of what is committed, and the
package's tests run on it. Mutants that survive are printed with their difference: some change
nothing that is returned, which only a reader can tell.

    python benchmarks/mutants.py [--seed 1] [--packages partition layout models mheta]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Mutants of each package, in proportion to its lines, and the tests that are to notice them.
SAMPLE = {"partition": 18, "layout": 12, "models": 12, "mheta": 18}
TESTS = {"models": ["tests/models", "tests/partition"]}
# `X | None` in an annotation is no operation.
ANNOTATIONS = "BinaryOperator_BitOr"
SECONDS = 240.0
FOUND = """
select spec.module_path, spec.start_pos_row, spec.operator_name, result.test_outcome, result.diff
from mutation_specs spec join work_results result on spec.job_id = result.job_id
"""


def sampled(session: Path, count: int, seed: int) -> None:
    """Keep a sample of a session's mutants."""
    with sqlite3.connect(session) as data:
        # ordered by place, since the ids of jobs are random
        specs = data.execute(
            "select job_id, operator_name from mutation_specs "
            "order by module_path, start_pos_row, start_pos_col, operator_name, occurrence"
        ).fetchall()
        jobs = [job for job, operator in specs if ANNOTATIONS not in operator]
        kept = {*random.Random(seed).sample(jobs, count)}
        for table in ("mutation_specs", "work_items"):
            data.executemany(
                f"delete from {table} where job_id = ?",
                [(job,) for job, _ in specs if job not in kept],
            )


def noticed(package: str, tree: Path, count: int, seed: int) -> int:
    """Return how many mutants of a package its tests notice; print the others."""
    tests = [*TESTS.get(package, [f"tests/{package}"]), f"fpmdask/{package}"]
    command = f"{sys.executable} -m pytest -q -x -n 2 -p no:cacheprovider -m 'not lab and not "
    command += f"thorough' --doctest-modules {' '.join(tests)}"
    config, session = tree / f"{package}.toml", tree / f"{package}.sqlite"
    config.write_text(
        f'[cosmic-ray]\nmodule-path = "fpmdask/{package}"\ntimeout = {SECONDS}\n'
        f'excluded-modules = []\ntest-command = "{command}"\n'
        '[cosmic-ray.distributor]\nname = "local"\n'
    )
    tool = shutil.which("cosmic-ray")
    if tool is None:
        raise SystemExit("cosmic-ray is not installed: pip install cosmic-ray")
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    for step in ("baseline", "init", "exec"):  # the first: all pass where nothing is changed
        arguments = [str(config)] if step == "baseline" else [str(config), str(session)]
        subprocess.run([tool, step, *arguments], cwd=tree, env=environment, check=True)
        if step == "init":
            sampled(session, count, seed)
    dead = 0
    with sqlite3.connect(session) as data:
        for path, row, operator, outcome, difference in data.execute(FOUND):
            if "KILLED" in str(outcome):
                dead += 1
            else:
                print(f"not noticed: {path}:{row} {operator}\n{difference}")
    print(f"{package}: {dead} of {count} noticed", flush=True)
    return dead


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--packages", nargs="+", choices=SAMPLE, default=[*SAMPLE])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fpmdask-mutants-") as name:
        archive = subprocess.run(
            ["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x"], cwd=name, input=archive, check=True)
        found = sum(
            noticed(package, Path(name), SAMPLE[package], options.seed)
            for package in options.packages
        )
    print(f"{found} of {sum(SAMPLE[one] for one in options.packages)} noticed")


if __name__ == "__main__":
    main()
