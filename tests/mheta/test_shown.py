"""What people see: HTML for notebooks, and predictions in words."""

from xml.etree import ElementTree

import numpy as np
import pytest

from fpmdask.mheta import (
    Array,
    Communication,
    Machine,
    Program,
    Section,
    Stage,
    anchors,
    evaluator,
    predict,
    search,
)
from fpmdask.mheta.checks import named
from fpmdask.mheta.explain import explain
from fpmdask.mheta.html import COLOURS

SVG = "{http://www.w3.org/2000/svg}"


def made(nodes, memory=None):
    stage = Stage([0.01 * (1 + i % 3) for i in range(nodes)], reads=["A"])
    program = Program([Section([stage], 1, Communication("reduction_tree", 8))], [Array("A", 10)])
    return program, Machine(nodes, memory, read_s_per_byte=[1e-4] * nodes, latency_s=0.1)


def parsed(shown):
    """Return the pictures in the HTML, which must be well-formed."""
    root = ElementTree.fromstring(shown.replace("<br>", "<br/>"))
    return root.findall(f".//{SVG}svg")


def test_a_prediction_has_a_bar_per_node_as_long_as_its_parts():
    program, machine = made(4, [None, 500, 500, 500])
    found = predict(program, machine, [100, 80, 60, 0], iterations=2)
    shown = found._repr_html_()
    assert f"<b>{found.seconds:.4g} s</b> for 2 iterations" in shown
    (picture,) = parsed(shown)
    bars = [r for r in picture.findall(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    longest = {}
    for bar in bars:
        words = bar.find(f"{SVG}title").text
        node = int(words.split(":")[0].removeprefix("node "))
        part, seconds = words.split(": ")[1].split()[:2]
        assert bar.get("fill") == COLOURS[part]
        assert float(seconds) == pytest.approx(found.parts[part][node], rel=1e-3)
        longest[node] = longest.get(node, 0) + float(bar.get("width"))
    ends = found.iteration_ends[0]
    assert longest.keys() == {0, 1, 2}
    for node, width in longest.items():
        assert width / max(longest.values()) == pytest.approx(ends[node] / ends.max(), abs=1e-3)


def test_infeasible_and_large_predictions_are_shown():
    program, machine = made(100, [5] * 100)
    found = predict(program, machine, [3] * 100)
    shown = found._repr_html_()
    assert "infeasible" in shown
    assert "and 36 more nodes" in shown
    assert parsed(shown)
    assert repr(found).startswith("<Prediction: [3, 3, ")
    empty = predict(*made(2), [0, 0])
    assert "<b>0 s</b> for 1 iteration" in empty._repr_html_()
    assert parsed(empty._repr_html_())


def test_a_search_shows_its_history_and_bars():
    program, machine = made(3, [None, 300, 300])
    start = np.array(list(anchors(program, machine, 100).values()))
    predicts, rng = evaluator(program, machine), np.random.default_rng(1)
    result = search.gbs(predicts, start, rng=rng, budget=500)
    history, bars = parsed(result._repr_html_())
    assert history.find(f"{SVG}polyline") is not None
    assert f"{result.evaluations} evaluations" in result._repr_html_()
    assert len(bars.findall(f"{SVG}rect")) > 5
    # without an evaluator there are no parts, but rows
    plain = search.random_search(lambda d: predicts(d), start, rng=rng, budget=50)
    history, bars = parsed(plain._repr_html_())
    assert len(bars.findall(f"{SVG}rect")) == np.count_nonzero(plain.distribution)
    never = search.random_search(
        lambda d: np.full(len(d), np.inf), start, rng=np.random.default_rng(1), budget=50
    )
    assert "no feasible distribution was found" in never._repr_html_()


def test_predictions_in_words():
    program, machine = made(4, [None, 500, 500, 500])
    assert explain(program, machine, [100, 60, 60, 40]) == [
        "nodes 1-2 go out of core at 60 rows (50 fit)",
        "node 2 is busy longest, 1.86 of 2.16 s: 97 % compute",
    ]
    assert explain(program, machine, [0, 0, 0, 0]) == ["no node has rows"]
    program, machine = made(3, [None, 5, 5])
    assert explain(program, machine, [1, 1, 2])[-1] == (
        "infeasible: nodes 1-2 cannot hold or stream so many rows"
    )
    assert named([1, 2, 5, 7, 8, 9]) == "nodes 1-2, 5, 7-9"
