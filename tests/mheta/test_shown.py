"""What people see: HTML for notebooks, and predictions in words."""

import dataclasses
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
from fpmdask.mheta.run_html import run_html
from fpmdask.mheta.search import SearchResult

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


def test_a_prediction_in_short():
    program, machine = made(2)
    found = predict(program, machine, [10, 20], iterations=3)
    assert repr(found) == f"<Prediction: [10, 20] takes {found.seconds:.6g} s, iterations: 3>"


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


def test_bars_and_words_stand_in_lines():
    program, machine = made(4, [None, 500, 500, 500])
    (picture,) = parsed(predict(program, machine, [100, 80, 60, 0])._repr_html_())
    lines = {}  # of each node: its bars from left to right
    for bar in picture.findall(f"{SVG}rect"):
        if (title := bar.find(f"{SVG}title")) is not None:
            node = int(title.text.split(":")[0].removeprefix("node "))
            lines.setdefault(node, []).append(bar)
    texts = [t for t in picture.findall(f"{SVG}text") if t.text not in COLOURS]
    for node, rows in enumerate([100, 80, 60, 0]):
        label, end = texts[2 * node : 2 * node + 2]
        assert label.text == f"node {node}: {rows} rows"
        assert float(label.get("x")) == 150 - 6
        assert label.get("y") == end.get("y")
        right = 150.0
        for bar in lines.get(node, []):
            assert float(bar.get("x")) == pytest.approx(right, abs=0.02)
            assert float(bar.get("y")) == float(label.get("y")) - 11
            assert float(bar.get("height")) == 14
            right += float(bar.get("width"))
        assert float(end.get("x")) == pytest.approx(right + 5, abs=0.1)
    assert np.diff([float(t.get("y")) for t in texts[::2]]).tolist() == [18.0] * 3
    legend = [t for t in picture.findall(f"{SVG}text") if t.text in COLOURS]
    squares = [r for r in picture.findall(f"{SVG}rect") if r.find(f"{SVG}title") is None]
    for name, text, square in zip(COLOURS, legend, squares, strict=True):
        assert (text.text, square.get("fill")) == (name, COLOURS[name])
        assert float(text.get("x")) == float(square.get("x")) + 14
    assert float(picture.get("height")) > float(texts[-1].get("y"))


def test_the_shortest_part_has_a_bar_and_none_has_no_bar():
    program, machine = made(2)
    found = predict(program, dataclasses.replace(machine, latency_s=1e-3), [900, 900])
    (picture,) = parsed(found._repr_html_())
    titles = [t.text for t in picture.iter(f"{SVG}title")]
    shown = {tuple(words.removeprefix("node ").split()[:2]) for words in titles}
    assert shown == {
        (f"{node}:", part) for node in (0, 1) for part in COLOURS if found.parts[part][node] > 0
    }


def test_a_history_falls_from_the_first_to_the_best():
    """Its axis has the seconds of both; it goes from the first evaluation to the last one."""
    found = SearchResult(
        distribution=np.array([3, 4]), seconds=1.0, evaluations=40, reason="budget",
        history=((1, np.inf), (2, 5.0), (10, 4.0), (30, 1.0)), prediction=None,
    )  # fmt: skip
    picture, _ = parsed(found._repr_html_())
    line = picture.find(f"{SVG}polyline").get("points").split()
    x, y = np.array([point.split(",") for point in line], dtype=float).T
    axis = {t.text: float(t.get("y")) - 4 for t in picture.findall(f"{SVG}text")[:2]}
    assert axis == {"5 s": 10.0, "1 s": 120.0}
    assert ((x - 150) * 40 / 420).tolist() == pytest.approx(
        [2, 2, 10, 10, 30, 30, 40, 40], abs=0.01
    )
    seconds = np.interp(y, [10.0, 120.0], [5.0, 1.0])
    assert seconds.tolist() == pytest.approx([5, 5, 5, 4, 4, 1, 1, 1], abs=0.01)
    constant = dataclasses.replace(found, history=((1, 1.0),))
    picture, _ = parsed(constant._repr_html_())
    assert {
        point.split(",")[1] for point in picture.find(f"{SVG}polyline").get("points").split()
    } == {"120.0"}


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


def shown_run():
    seconds = {part: [0.5, 0.25] for part in ("seconds", *COLOURS)}
    return {
        "version": 1,
        "why": "rows <move>",
        "workers": ["a", "b"],
        "spectrum": {"corners": ["Blk", "Bal", "Blk"], "seconds": [2.0, np.inf, 1.0, 1.5, 2.0]},
        "choices": [{"best_seconds": 0.9}],
        "phases": [
            {"first": 1, "count": 1, "rows": [5, 5], "measured": seconds},
            {"first": 2, "count": 8, "rows": [7, 3], "measured": seconds, "predicted": seconds},
        ],
    }


def test_a_run_shows_its_spectrum_and_what_was_predicted_and_measured():
    shown = run_html(shown_run())
    (picture,) = parsed(shown)
    dots = picture.findall(f"{SVG}circle")
    assert len(dots) == 4, "what is infeasible is no point"
    assert dots[1].find(f"{SVG}title").text == "predicted: 1 s"
    assert picture.find(f"{SVG}polyline") is None
    assert "rows &lt;move&gt;" in shown
    assert "iterations 2 to 9: predicted 0.5 s, measured 0.5 s each" in shown
    assert "iterations 1 to 1: measured 0.5 s each" in shown
    # in core nothing is predicted
    assert "in core" in run_html({"version": 1, "why": "in core", "workers": ["a"], "phases": []})
