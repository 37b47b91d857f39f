"""Golden traces of the searches and of what is fitted to recorded iterations.

`tests.golden` says how they are kept and written anew. The searches draw from `numpy.random`: if
NumPy ever draws other numbers, write the traces anew.
"""

from pathlib import Path

import numpy as np
import pytest

from fpmdask.errors import PartitionError
from fpmdask.mheta import Machine, Program, Section, Stage, anchors, evaluator, predict, spectrum
from fpmdask.mheta.explain import explain
from fpmdask.mheta.instrument import fit
from fpmdask.mheta.instrument.linear import robust_line
from fpmdask.mheta.search import annealing, exhaustive, gbs, genetic, random_search
from fpmdask.mheta.search.bisection import bisect_path
from fpmdask.mheta.search.compositions import Compositions, random_compositions
from fpmdask.mheta.search.descent import cost, descend
from fpmdask.mheta.search.evaluations import begin
from fpmdask.mheta.search.moves import (
    along,
    blended,
    gives_evenly,
    rounded,
    scaled,
    takes_evenly,
    transfers,
)
from fpmdask.mheta.search.participants import try_participants
from tests.golden import Golden, checksum, numbers, whole
from tests.mheta.random_programs import random_case
from tests.mheta.traces import Noise, many_blocks, write_benchmarks, write_traces

GOLDEN = Golden(Path(__file__).parent)
# Nodes, rows, budget, and how much of the distributions is infeasible.
PROBLEMS = {
    "three nodes": (3, 60, 900, 0.0),
    "five nodes": (5, 1000, 2500, 0.0),
    "eight nodes": (8, 4000, 3000, 0.0),
    "few feasible": (6, 300, 1500, 0.75),
    "fourteen nodes": (14, 900, 5000, 0.0),
    "seventy nodes": (70, 2000, 4000, 0.0),
    "small budget": (6, 500, 40, 0.0),
    "two rows": (4, 2, 100, 0.0),
    "large budget": (3, 50, 100_000, 0.0),
}
SEARCHES = {
    "gbs": gbs,
    "annealing": annealing,
    "genetic": genetic,
    "random_search": random_search,
}


class Watched:
    """A predictor in whole numbers, exact on any machine, that keeps what it is asked.

    A node takes its rows times its figure, 60 % more beyond its memory, and a start-up time.
    """

    def __init__(self, seed, nodes, rows, infeasible):
        rng = numbers(seed)
        self.figure = np.array([whole(rng, 10, 60) for _ in range(nodes)])
        self.memory = np.array([whole(rng, 1, 2 * rows // nodes + 1) for _ in range(nodes)])
        self.start_up = np.array([whole(rng, 0, 40 * rows // nodes) for _ in range(nodes)])
        self.most = rows * (1.0 - infeasible)
        self.batches = []

    def __call__(self, rows):
        times = 5 * rows * self.figure + 3 * np.maximum(rows - self.memory, 0) * self.figure
        seconds = (times + self.start_up * (rows > 0)).max(axis=1).astype(float)
        seconds[rows.max(axis=1) > self.most] = np.inf
        self.batches.append(checksum(rows))
        return seconds


def problem(name):
    nodes, rows, budget, infeasible = PROBLEMS[name]
    predict = Watched(len(name), nodes, rows, infeasible)
    rng = numbers(nodes)
    start = [[rows, *[0] * (nodes - 1)]]
    for _ in range(3):
        cuts = sorted(whole(rng, 0, rows) for _ in range(nodes - 1))
        start.append(np.diff([0, *cuts, rows]).tolist())
    return predict, np.array([*start, start[0]]), budget


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("search", SEARCHES)
def test_golden_search(search, name):
    """Every batch that is predicted, what is found on the way, and why the search ends."""
    predict, start, budget = problem(name)
    found = SEARCHES[search](predict, start, rng=np.random.default_rng(5), budget=budget)
    GOLDEN.check(
        f"{search} {name}",
        [predict.batches, found.history, found.distribution, found.evaluations, found.reason],
    )


@pytest.mark.parametrize("name", PROBLEMS)
def test_golden_parts_of_gbs(name):
    """The path, the sets of nodes and one descent, each alone."""
    parts = {
        "path": lambda seen, rng: bisect_path(seen),
        "nodes": lambda seen, rng: try_participants(seen, seen.start[1:4], rng),
        "descent": lambda seen, rng: descend(
            seen, seen.start[1:3], np.array([seen.rows // 2, 1]), seen.start[2:4], rng
        ),
    }
    trace = {}
    for part, run in parts.items():
        predict, start, budget = problem(name)
        rng = np.random.default_rng(6)
        seen = begin(predict, start, rng, 10 * budget)
        run(seen, rng)
        rows, seconds = seen.known
        trace[part] = [predict.batches, seen.best, seen.seconds, checksum(rows), seconds[-3:]]
    trace["cost"] = cost(seen, seen.start[:2])
    GOLDEN.check(f"parts {name}", trace)


def test_golden_exhaustive():
    trace = []
    for nodes, rows, budget in ((1, 9, 5), (3, 60, 1900), (4, 24, 5000)):
        predict = Watched(nodes, nodes, rows, 0.0)
        start = [[rows, *[0] * (nodes - 1)]]
        found = exhaustive(predict, start, rng=np.random.default_rng(1), budget=budget)
        trace.append([predict.batches, found.history, found.distribution, found.reason])
    GOLDEN.check("exhaustive", trace)


def test_golden_moves():
    trace = []
    for case in range(12):
        rng = numbers(case)
        nodes, rows = whole(rng, 2, 6), whole(rng, 3, 90)
        x = random_compositions(rows, nodes, 3, np.random.default_rng(case))
        other = random_compositions(rows, nodes, 3, np.random.default_rng(case + 50))
        step, node = np.array([1, whole(rng, 1, rows), rows]), np.arange(0, nodes, 2)
        pair = np.array([[0, 1, nodes - 1]]), np.array([[1, 0, 0]])
        share = np.array([[rng.uniform(-0.5, 1.5)] for _ in range(3)])
        weights = np.array([[rng.uniform(0, 3) for _ in range(nodes)] for _ in range(2)])
        numbers_ = Compositions(rows, nodes)
        trace.append([
            *(x, transfers(x, step, *pair), takes_evenly(x, step, node)),
            *(gives_evenly(x, step, node), along(x, step, other, rows)),
            *(blended(x, other, share, rows), scaled(weights, rows)),
            *(rounded(weights, rows), len(numbers_), numbers_[:: max(len(numbers_) // 5, 1)]),
        ])  # fmt: skip
    GOLDEN.check("moves", [checksum(np.concatenate([np.ravel(v) for v in t])) for t in trace])


@pytest.mark.parametrize("case", range(12))
def test_golden_predictions(case):
    """Random programs: what every node spends on what, the anchors and the path through them."""
    plain = random_case(np.random.default_rng(31_000 + case))
    program = Program.from_dict(plain["program"])
    machine = Machine.from_dict(plain["machine"], len(plain["distribution"]))
    found = predict(program, machine, plain["distribution"], iterations=plain["iterations"])
    corners = anchors(program, machine, plain["rows"])
    path = spectrum(program, machine, plain["rows"], steps=3)
    seconds = evaluator(program, machine)(path)
    blocks = [section.blocks for section in found.sections]
    trace = [found.seconds, found.parts, blocks, corners, checksum(path), seconds]
    GOLDEN.check(f"prediction {case}", trace)


@pytest.mark.parametrize("case", range(12))
def test_golden_fits(case):
    """What comes back from noisy records of random programs."""
    seed = 52_000 + case
    while True:
        plain = random_case(np.random.default_rng(seed))
        nodes = len(plain["distribution"])
        program = Program.from_dict(plain["program"])
        if nodes > 1 and all("fpm" not in s for x in plain["program"]["sections"]
                             for s in x.get("stages", [])):  # fmt: skip
            break
        seed += 100
    machine = Machine.from_dict(plain["machine"], nodes)
    noise = Noise(case, 0.02, 0.01)
    rows = [40 + 3 * k for k in range(nodes)]
    traces = write_traces(program, machine, rows, many_blocks(4, 3), noise)
    benchmarks = write_benchmarks(machine, noise, repeats=3)
    made, figures = fit(program, traces, benchmarks, None, models=case % 2 == 1)
    GOLDEN.check(f"fit {case}", [made.to_dict(), figures.to_dict()])


def test_golden_pictures():
    """The lines of the pictures of a prediction, of more nodes than are drawn, and of a search."""
    plain = random_case(np.random.default_rng(31_001))
    program = Program.from_dict(plain["program"])
    nodes = len(plain["distribution"])
    machine = Machine.from_dict(plain["machine"], nodes)
    found = predict(program, machine, plain["distribution"], iterations=2)
    many = Program([Section([Stage([1.0 + k for k in range(66)])])])
    predicts = predict(many, Machine(66), np.arange(66))
    tried, start, _ = problem("three nodes")
    search = annealing(tried, start, rng=np.random.default_rng(2), budget=60)
    pages = [v._repr_html_() for v in (found, predicts, search)]
    words = [explain(program, machine, plain["distribution"]), repr(found)]
    shown = [page.replace("><", ">\n<").splitlines() for page in pages]
    # most bars of the many nodes are alike
    GOLDEN.check("pictures", [shown[0], shown[1][:30] + shown[1][-9:], shown[2], words])


def test_golden_robust_lines():
    trace = []
    for case in range(10):
        rng = numbers(case)
        sizes = [float(100 * whole(rng, 1, 3 + case)) for _ in range(4 + 3 * case)]
        seconds = [0.01 + 1e-4 * x * rng.uniform(0.9, 1.1) for x in sizes]
        seconds[1] *= 10
        trace.append(list(robust_line(sizes, seconds, "reads")))
    GOLDEN.check("robust lines", trace)


def small(**figures):
    return Program([Section([Stage([1.0, 2.0, 3.0])])]), Machine(3, **figures)


def searched(predicted, start=((3, 1),), **options):
    rng = np.random.default_rng(0)
    return random_search(lambda rows: predicted, start, **{"rng": rng, "budget": 9, **options})


REFUSED = {
    "rows": lambda: anchors(*small(), 0),
    "many rows": lambda: anchors(*small(), 2**53),
    "steps": lambda: spectrum(*small(), 9, steps=1001),
    "distribution": lambda: predict(*small(), [1, 2, -1]),
    "nodes": lambda: predict(*small(), [1, 2]),
    "unequal": lambda: evaluator(*small())([[1, 2, 3], [1, 2]]),
    "batch": lambda: evaluator(*small())([[1, 2, 3], [1, -2, 3]]),
    "halves": lambda: evaluator(*small())([[1, 2, 3], [1, 2.5, 3]]),
    "machine": lambda: small(memory_bytes=[1, 2, -3]),
    "entries": lambda: small(read_s_per_byte=[1.0, 2.0]),
    "figures": lambda: small(read_s_per_byte=[1.0, 2.0, float("nan")]),
    "idle nodes": lambda: anchors(Program([Section([Stage([0.0, 1.0, 0.0, 0.0])])]), Machine(4), 9),
    "stages": lambda: Program([Section([Stage([1.0, 2.0])]), Section([Stage([1.0])])]),
    "arrays": lambda: Program([Section([Stage([1.0], reads=["A"])])]),
    "start": lambda: searched([1.0], ((3, 1), (2, 2), (2, 1))),
    "budget": lambda: searched([1.0], ((3, 1), (2, 2), (1, 3), (2, 2)), budget=2),
    "seconds": lambda: searched([1.0, -2.0], ((3, 1), (2, 2))),
    "shape": lambda: searched([1.0, 2.0]),
    "generator": lambda: searched([1.0], rng=3),
    "rows of starts": lambda: searched([1.0], ((2**60, 1),)),
}


def test_golden_refusals():
    """What an error says of the value that is not allowed: which one, and where it is."""
    said = {}
    for name, call in REFUSED.items():
        with pytest.raises(PartitionError) as refused:
            call()
        said[name] = str(refused.value)
    GOLDEN.check("refusals", said)
