"""The table and the picture of known models: golden, and what is too much to draw."""

import xml.etree.ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from fpmdask.errors import PartitionError
from fpmdask.models import ConstantModel, PiecewiseLinearModel
from fpmdask.runtime.identity import Fingerprint
from fpmdask.runtime.known_models import (
    MOST_KERNELS,
    MOST_WORKERS,
    NOTHING,
    KnownModel,
    as_html,
    as_text,
)
from tests.golden import Golden

GOLDEN = Golden(Path(__file__).parent)
HARDWARE = Fingerprint("Some <CPU> & more", "openblas 0.3", "Zen", 2, 2, 0.5, 10**9)


def known(worker, points, kernel="sort.local", parameters='{"dtype":"<f8"}', **facts):
    units, seconds = zip(*points, strict=True)
    model = PiecewiseLinearModel.from_points(units, seconds)
    one = KnownModel(worker, kernel, "numpy 2", parameters, HARDWARE, True, model)
    return replace(one, **facts)


KNOWN = [
    known("b", [(100, 1.0), (200, 4.0)]),
    known("a", [(100, 0.5), (300, 1.5), (400, 4.0)], half_widths={100.0: 0.05, 400.0: 1.0}),
    known("gone", [(50, 1.0)], connected=False),
    known("a", [(1000, 2.0)], kernel="matmul.panel", parameters="{}"),
]


def picture_count(html):
    root = xml.etree.ElementTree.fromstring(html.replace("<br>", "<br/>"))
    return len(root.findall(".//{http://www.w3.org/2000/svg}svg"))


def test_golden_table_and_pictures():
    GOLDEN.check("table of models", as_text(KNOWN).splitlines())
    html = as_html(KNOWN)
    GOLDEN.check("html of models", html.replace("<tr>", "\n<tr>").splitlines())
    assert picture_count(html) == 2
    assert as_html(KNOWN[::-1]) == html
    assert "script" not in html
    # a's widest interval; drawn where there is one
    assert "100 to 200/s ±25%" in as_text(KNOWN)
    assert html.count('stroke-width="2"') == 2
    assert "400 units in 4 s ±1 s" in html


def test_an_empty_library_says_what_to_do():
    assert as_text([]) == NOTHING
    assert NOTHING in as_html([])


def test_of_many_kernels_and_workers_some_are_drawn_and_the_others_counted():
    kernels = [known("a", [(1, 1.0)], kernel=f"k{n:03}") for n in range(MOST_KERNELS + 3)]
    assert picture_count(as_html(kernels)) == MOST_KERNELS
    assert "and 3 more kernels" in as_html(kernels)
    workers = [known(f"w{n:03}", [(1, 1.0)]) for n in range(MOST_WORKERS + 5)]
    assert "and 5 more workers" in as_html(workers)
    assert as_html(workers).count("<circle") == MOST_WORKERS


def test_models_come_back_from_plain_data():
    for one in KNOWN:
        assert KnownModel.from_facts(one.facts) == one
    facts = replace(KNOWN[0].facts, model=ConstantModel(3.0).to_json())
    with pytest.raises(PartitionError, match="kind 'constant'"):
        KnownModel.from_facts(facts)
