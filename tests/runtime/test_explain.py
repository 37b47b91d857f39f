"""Explanations of runs: golden texts and pictures, and what they say of each kind of worker."""

import xml.etree.ElementTree
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from fpmdask.models import PiecewiseLinearModel
from fpmdask.runtime.client.shares import Shares
from fpmdask.runtime.explain import MOST_ROWS, explained
from fpmdask.runtime.report import Moved, Report, build
from tests.cli.conftest import given_run, measured_run
from tests.golden import Golden

GOLDEN = Golden(Path(__file__).parent)
MODELS = {
    "fast": PiecewiseLinearModel.from_points([100, 500], [0.5, 2.5]),
    "paging": PiecewiseLinearModel.from_points([50, 250], [0.5, 6.25]),
    "full": PiecewiseLinearModel.from_points([100, 200], [1.0, 2.0]),
    "far": PiecewiseLinearModel.from_points([50, 150], [0.5, 1.5]),
    "idle": PiecewiseLinearModel.from_points([1], [9.0]),
}
UNITS = {"fast": 500, "paging": 250, "full": 200, "far": 150, "idle": 0}


def share(name, units, seconds, computing, **facts):
    return {
        "worker": name,
        "units": units,
        "seconds": seconds,
        "compute_seconds": computing,
        "wait_seconds": seconds - computing,
        "nbytes_received": 1_234_567,
        **facts,
    }


def every_kind():
    """Return the report of a product with a worker of each kind."""
    return build(
        {
            "run": "matmul-0123456789ab",
            "names": {f"tcp://{name}": name for name in UNITS},
            "result": {
                "distribution": {f"tcp://{name}": units for name, units in UNITS.items()},
                "proposal": {f"tcp://{name}": units for name, units in UNITS.items()},
                "seconds": {
                    f"tcp://{name}": float(MODELS[name].time(units)) / 10 if units else None
                    for name, units in UNITS.items()
                },
                "imbalance": 0.25,
                "reason": "stagnant",
            },
            "uncertainty": {"tcp://fast": 0.03, "tcp://paging": 0.12},
            "phases": {"prepare": 0.1, "measure": 0.9, "multiply": 6.0},
            "rounds": [],
            "shares": [
                share("fast", 500, 3.0, 2.5),
                share("paging", 250, 5.5, 5.2),
                share("full", 200, 2.2, 2.0),
                share("far", 150, 5.0, 1.5),
            ],
            "helps": [share("fast", 40, 1.0, 0.8, helps="paging")],
            "layout": {"name": "columns", "why": "the fewest <rows> & columns"},
            "links": {
                "fast": [1e-9, 1e-9],
                "paging": [1e-9, 1e-9],
                "full": [1e-9, 1e-9],
                "far": [2e-8, 1e-9],
                "idle": [1e-9, 1e-9],
            },
            "limits": {"full": 200.0},
            "predicted_seconds": 5.0,
            "left_out": {"gone & lost": "left the cluster"},
            "models": {name: model.to_json() for name, model in MODELS.items()},
            "log": None,
        },
        "matmul",
    )


def few_keys():
    """Return the report of a sort that measured nothing."""
    nothing = dict.fromkeys(("a", "b"))
    return build(
        {
            "run": "sort-0123456789ab",
            "result": {
                "distribution": {"a": 2, "b": 3},
                "proposal": {"a": 2, "b": 3},
                "seconds": nothing,
                "reason": "few keys",
            },
            "phases": {},
            "rounds": [],
            "shares": [
                {
                    "worker": name,
                    "units": units,
                    "seconds": 0.25,
                    "nbytes_received": 8,
                    "nbytes_input": 20,
                }
                for name, units in (("a", 2), ("b", 3))
            ],
            "left_out": {},
            "log": None,
        },
        "sort",
    )


def partition():
    """Return what `Balancer.partition` has: no shares were computed."""
    return replace(measured_run(leaves="gamma"), app="partition", shares=(), phases={})


def of_three(app, units, seconds, reason, phases, shares, **facts):
    """Return the report of a run on workers a, b and c."""
    names = ("a", "b", "c")
    return build(
        {
            "run": f"{app}-0123456789ab",
            "result": {
                "distribution": dict(zip(names, units, strict=True)),
                "proposal": dict(zip(names, units, strict=True)),
                "seconds": dict(zip(names, seconds, strict=True)),
                "reason": reason,
            },
            "phases": phases,
            "rounds": [],
            "shares": [
                {"worker": name, "units": n, "nbytes_received": 1000 * n, **own}
                for name, n, own in zip(names, units, shares, strict=False)
            ],
            "left_out": {},
            "log": None,
            **facts,
        },
        app,
    )


def sort():
    """Return the report of a sort of keys whose speeds were measured."""
    shares = [
        {"seconds": s, "wait_seconds": s / 4, "nbytes_input": n * 8}
        for s, n in ((0.5, 400), (0.52, 200), (0.48, 100))
    ]
    phases = {"prepare": 0.01, "measure": 0.05, "sort": 0.6}
    return of_three(
        "sort",
        (400, 200, 100),
        (0.25, 0.26, 0.24),
        "measured",
        phases,
        shares,
        predicted_seconds=0.5,
        uncertainty={"a": 0.02},
    )


def sort_values():
    """Return the report of a sort of a frame's rows, as `Balancer.sort_values` has it."""
    return sort().with_rows(Moved(0.1, 0.2, [("b", 5000)], 70_000, None, "travelled with keys"))


def map_blocks(reason="measured"):
    """Return the report of calls that workers took when they were done."""
    calls = ((2.0, 9), (2.1, 5), (1.9, 3))
    shares = [
        {"seconds": s, "compute_seconds": 0.9 * s, "wait_seconds": 0.1 * s, "calls": n}
        for s, n in calls
    ]
    return of_three("blocks", (400, 200, 100), [s for s, _ in calls], reason, {}, shares)


def rebalance():
    """Return the report of rows that were moved to where they are computed faster."""
    shares = [{"seconds": s, "weight": 1, "chunks": 1} for s in (0.1, 0.2, 0.0)]
    phases = {"prepare": 0.1, "measure": 0.7, "move": 0.3}
    return of_three(
        "rebalance",
        (400, 200, 100),
        (1.0, 1.05, 0.95),
        "measured",
        phases,
        shares,
        predicted_seconds=1.05,
    )


def stencil():
    """Return the report of iterations of a stencil, one worker of which reads from its disk."""
    parts = ((3.0, 2.5, 0.0), (3.1, 2.4, 0.0), (3.2, 1.2, 1.5))
    shares = [
        {
            "seconds": whole,
            "compute_seconds": computing,
            "io_seconds": io,
            "wait_seconds": whole - computing - io,
            "blocks": 4 if io else 1,
            "iterations": 10,
        }
        for whole, computing, io in parts
    ]
    phases = {"prepare": 0.2, "iterate": 3.2, "move": 0.0}
    seconds = [computing for _, computing, _ in parts]
    return of_three("stencil", (400, 200, 100), seconds, "predicted", phases, shares)


REPORTS = {
    "every kind": every_kind,
    "sort": sort,
    "sort_values": sort_values,
    "map_blocks": map_blocks,
    "rebalance": rebalance,
    "stencil": stencil,
    "few keys": few_keys,
    "given": given_run,
    "measured": measured_run,
    "partition": partition,
}


def pictures(html):
    """Return the pictures of an explanation, checked to be well-formed."""
    root = xml.etree.ElementTree.fromstring(html.replace("<br>", "<br/>"))
    return root.findall(".//{http://www.w3.org/2000/svg}svg")


@pytest.mark.parametrize("name", REPORTS)
def test_golden_explanations(name):
    report = REPORTS[name]()
    GOLDEN.check(f"text of {name}", report.explain().splitlines())
    html = report._repr_html_()
    GOLDEN.check(f"html of {name}", html.replace("<tr>", "\n<tr>").splitlines())
    assert len(pictures(html)) == len(report.workers)


@pytest.mark.parametrize("name", REPORTS)
def test_the_page_says_what_the_text_says(name):
    report = REPORTS[name]()
    page = unescape(report._repr_html_())
    for story in explained(report).workers:
        assert all(why in page for why in story.why)
        assert all(why in report.explain() for why in story.why)
        assert story.why, f"nothing is said of {story.name}"
    assert Shares(report)._repr_html_() == report._repr_html_()
    assert Shares(report).explain() == report.explain()
    assert "script" not in page
    assert "None" not in page


def test_why_each_kind_of_worker_got_its_share():
    found = {story.name: "; ".join(story.why) for story in explained(every_kind()).workers}
    assert "faster: 2.0 times the middle speed; helped paging (40 units)" in found["fast"]
    assert "slower: 40 % of the middle speed" in found["paging"]
    assert "with so much it has 40 % of its best speed" in found["paging"]
    assert "helped by fast (40 units)" in found["paging"]
    assert found["full"].startswith("memory limit: 200 units at most; about the middle speed")
    assert "its link takes 20 times as long as the middle one" in found["far"]
    assert found["idle"].startswith("too slow")


def test_nobody_is_called_too_slow_whose_speed_had_no_part_in_it():
    few = of_three(
        "blocks", (1, 0, 0), (0.1, 0.0, 0.0), "measured", {}, [{"seconds": 0.1, "calls": 1}]
    )
    even = of_three("partition", (1, 1, 0), (None, None, None), "too short to time", {}, ())
    found = [{one.name: one.why for one in explained(of).workers} for of in (few, even)]
    assert found[0]["b"] == ("the others had taken all before it asked",)
    assert found[1]["a"] == ("even shares: too short to time",)
    assert found[1]["c"] == ("even shares: too short to time; there are fewer units than workers",)


def test_the_efficiency_is_the_ideal_over_what_it_took():
    """Work over the sum of the speeds that the workers had in the run, none of them waiting."""
    found = explained(every_kind())
    speeds = 540 / 3.3 + 250 / 5.2 + 200 / 2.0 + 150 / 1.5
    assert found.ideal == pytest.approx(1140 / speeds)
    assert found.efficiency == pytest.approx(1140 / speeds / 5.5)
    assert explained(few_keys()).efficiency is None
    # who all finish at once, and never wait, are as good as can be
    even = partition()
    seconds = tuple(units / 100 for units in even.distribution.tolist())
    assert explained(replace(even, seconds=seconds)).efficiency == pytest.approx(
        even.distribution.sum() / (100 * len(even)) / max(seconds)
    )


def test_planned_seconds_are_scaled_to_the_predicted_makespan():
    planned = {story.name: story.planned for story in explained(every_kind()).workers}
    assert max(filter(None, planned.values())) == 5.0
    assert planned["fast"] == pytest.approx(5.0 * 2.5 / 6.25)
    assert planned["idle"] is None


def test_shares_may_say_what_they_were_to_take():
    report = every_kind()
    planned = {"fast": 2.75, "paging": 5.0}
    shares = tuple(
        {**one, "planned_seconds": planned[one["worker"]]} if one["worker"] in planned else one
        for one in report.shares
    )
    found = explained(replace(report, shares=shares, predicted_seconds=None))
    assert found.planned == "planned"
    assert {s.name: s.planned for s in found.workers if s.planned is not None} == planned


def test_a_worker_whose_whole_share_others_have_computed_is_said_to_be_one():
    report = every_kind()
    shares = tuple(one for one in report.shares if one["worker"] != "far")
    helps = (
        share("fast", 100, 1.0, 0.8, helps="far"),
        share("full", 50, 1.0, 0.8, helps="far"),
    )
    found = {story.name: story for story in explained(replace(report, helps=helps)).workers}
    assert found["far"].why[0] == "others have computed all of its share"
    assert found["far"].why[-2:] == ("helped by fast (100 units)", "helped by full (50 units)")
    gone = explained(replace(report, shares=shares, helps=helps)).workers
    assert {story.name: story.why for story in gone}["far"] == found["far"].why
    assert "all of its share" not in every_kind().explain()


def test_calls_that_workers_took_when_they_were_done_had_no_planned_seconds():
    said = map_blocks().explain()
    assert "self-scheduled in 17 calls" in said
    assert "planned seconds" in said
    heads = next(line for line in said.splitlines() if line.startswith("worker"))
    assert "planned" not in heads
    assert "<th>planned</th>" not in map_blocks()._repr_html_()
    # a caller who gives the rows knows that nothing was handed out
    assert "self-scheduled" not in map_blocks("given").explain()


def test_of_many_workers_some_are_drawn_and_the_others_counted():
    report = measured_run()
    many = 3 * MOST_ROWS
    wide = replace(
        report,
        workers=tuple(f"w{n}" for n in range(many)),
        addresses=tuple(f"w{n}" for n in range(many)),
        distribution=np.ones(many, dtype=np.int64),
        proposal=np.ones(many, dtype=np.int64),
        seconds=(1.0,) * many,
        uncertainty=(None,) * many,
        shares=(),
        models={},
    )
    html = wide._repr_html_()
    assert len(pictures(html)) == MOST_ROWS
    assert f"and {many - MOST_ROWS} more workers" in html
    assert len(wide.explain().splitlines()) > many


def test_logs_of_before_explain_themselves_too():
    data = measured_run().to_json()
    del data["limits"]
    assert Report.from_json(data).explain() == measured_run().explain()
