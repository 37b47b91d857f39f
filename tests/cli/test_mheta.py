"""`fpmdask mheta`: predictions, the path of anchors and searches from one JSON document."""

import json

import numpy as np
import pytest

from fpmdask.mheta import Array, Communication, Machine, Program, Section, Stage, predict
from fpmdask.mheta.document import Document

STAGE = Stage([0.03, 0.01, 0.01], reads=["u"], writes=["u"])
PROGRAM = Program(
    [Section([STAGE], communication=Communication("nearest_neighbour", 8000))], [Array("u", 8000)]
)
MACHINE = Machine(
    3,
    [None, None, 800_000],
    read_overhead_s=[0.001] * 3,
    read_s_per_byte=[5e-7] * 3,
    write_s_per_byte=[5e-7] * 3,
)


@pytest.fixture
def document(tmp_path):
    def write(**changes):
        path = tmp_path / "jacobi.json"
        data = Document(PROGRAM, MACHINE, 700).to_dict() | changes
        path.write_text(json.dumps({k: v for k, v in data.items() if v is not None}))
        return path

    return write


def answer(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_prediction_as_json_is_that_of_predict(fpm, document):
    path = document(iterations=3)
    found = answer(fpm("mheta", "predict", path, "--distribution", "100,300,300", "--json"))
    wanted = predict(PROGRAM, MACHINE, [100, 300, 300], iterations=3)
    assert found["seconds"] == wanted.seconds
    assert found["node_seconds"] == wanted.node_seconds.tolist()
    assert found["parts"] == {k: v.tolist() for k, v in wanted.parts.items()}
    assert found["sections"][0]["blocks"] == [[0, 0, 3]]
    assert found["steady_state_seconds"] == wanted.steady_state_seconds
    assert found["infeasible"] == []
    assert found["why"][0] == "node 2 goes out of core at 300 rows (100 fit)"


@pytest.mark.parametrize(
    ("given", "option", "rows"),
    [
        (None, None, [234, 233, 233]),
        ([200, 400, 100], None, [200, 400, 100]),
        ([200, 400, 100], "I-C/Bal", [150, 450, 100]),
        (None, "Bal", [100, 300, 300]),
        (None, "700,0,0", [700, 0, 0]),
    ],
)
def test_which_distribution_is_predicted(fpm, document, given, option, rows):
    options = [] if option is None else ["--distribution", option]
    path = document(distribution=given)
    found = answer(fpm("mheta", "predict", path, *options, "--json"))
    assert found["distribution"] == rows


def test_people_get_a_row_per_node_and_the_reason(fpm, document):
    lines = fpm("mheta", "predict", document(), "--distribution", "Bal").stdout.splitlines()
    assert lines[0].split() == [
        *("node", "rows", "fit", "blocks", "compute", "io", "send", "wait", "receive", "end"),
    ]
    assert lines[3].split()[:5] == ["2", "300", "100", "3", "3"]
    assert lines[4].startswith("5.403 s for 1 iteration")
    assert lines[-1].startswith("node 2 is busy longest, 5.4 of 5.4 s: 56 % compute, 44 % io")


def test_paper_accounting_and_infeasible_distributions(fpm, document):
    options = ("--distribution", "100,280,320", "--json")
    exact = answer(fpm("mheta", "predict", document(), *options))
    paper = answer(fpm("mheta", "predict", document(), "--accounting", "paper", *options))
    assert paper["seconds"] > exact["seconds"]
    machine = MACHINE.to_dict() | {"memory_bytes": [None, None, 100]}
    path = document(machine=machine)
    found = answer(fpm("mheta", "predict", path, "--distribution", "300,300,100", "--json"))
    assert (found["seconds"], found["infeasible"]) == ("inf", [2])
    assert found["why"][-1] == "infeasible: node 2 cannot hold or stream so many rows"
    shown = fpm("mheta", "predict", path, "--distribution", "300,300,100").stdout
    assert "infeasible: node 2" in shown


def test_the_spectrum_marks_the_best_and_says_why(fpm, document):
    found = answer(fpm("mheta", "spectrum", document(), "--steps", "4", "--json"))
    names = [point["at"] for point in found["spectrum"]]
    assert len(names) == 17
    assert names[::4] == ["Blk", "I-C", "I-C/Bal", "Bal", "Blk"]
    assert names[5] == "I-C → I-C/Bal 1/4"
    best = min(found["spectrum"], key=lambda point: point["seconds"])
    assert found["best"] == best
    assert all(sum(point["distribution"]) == 700 for point in found["spectrum"])
    assert found["why"][0].startswith(f"best at {best['at']}: ")
    assert any(line.startswith("Bal takes 1.") for line in found["why"])
    lines = fpm("mheta", "spectrum", document(), "--steps", "4").stdout.splitlines()
    marked = [line for line in lines[1:18] if " best " in line]
    assert len(marked) == 1
    assert marked[0].startswith(best["at"])


def test_a_path_without_legs_and_one_that_nothing_can_do(fpm, document):
    equal = PROGRAM.to_dict()
    equal["sections"][0]["stages"][0]["seconds_per_row"] = [0.01] * 3
    found = answer(fpm("mheta", "spectrum", document(program=equal, machine={}), "--json"))
    assert [point["at"] for point in found["spectrum"]] == ["Blk = I-C = I-C/Bal = Bal"]
    machine = {"memory_bytes": [10, 10, 10]}
    result = fpm("mheta", "spectrum", document(machine=machine))
    assert result.exit_code == 0
    assert "no point of the path is feasible" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gbs", "genetic", "annealing", "random_search", "exhaustive"])
def test_searches(fpm, document, method):
    path = document(rows=60)
    options = ("--method", method, "--seed", "3", "--budget", "3000", "--json")
    found = answer(fpm("mheta", "search", path, *options))
    assert sum(found["distribution"]) == 60
    assert found["method"] == method
    assert found["seconds"] <= min(found["anchors"].values())
    assert found["seconds"] == predict(PROGRAM, MACHINE, found["distribution"]).seconds
    assert found["history"][-1][1] == found["seconds"]
    assert found == answer(fpm("mheta", "search", path, *options))
    shown = fpm("mheta", "search", path, *options[:-1]).stdout
    assert f"{method}: {found['seconds']:.4g} s after {found['evaluations']} predictions" in shown


def test_a_search_whose_budget_is_too_small_says_so(fpm, document):
    result = fpm("mheta", "search", document(), "--method", "exhaustive", "--json")
    assert result.exit_code == 1
    assert "10000" in result.stderr.replace(",", "").replace("_", "")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["predict", "spectrum", "search"])
def test_plots_are_drawn(fpm, document, tmp_path, command):
    target = tmp_path / f"{command}.svg"
    result = fpm("mheta", command, document(), "--plot", target)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"drawn: {target}"
    text = target.read_text()
    assert "<svg" in text
    assert answer(fpm("mheta", command, document(), "--plot", target, "--json"))["plot"] == str(
        target
    )


def test_plots_that_cannot_be_drawn_are_refused_at_once(fpm, document, tmp_path):
    for target in (tmp_path / "plot.txt", tmp_path / "none" / "plot.png"):
        result = fpm("mheta", "predict", document(), "--plot", target)
        assert result.exit_code == 2
        assert str(target.parent) in result.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"program": None}, "document has no 'program', which is needed"),
        ({"machine": None}, "document has no 'machine', which is needed"),
        ({"rows": None}, "neither 'rows' nor 'distribution'"),
        ({"rows": 1.5}, "document.rows must be a whole number"),
        ({"rows": 5, "distribution": [1, 2, 3]}, "sums to 6, document.rows is 5"),
        ({"distribution": [1, 2]}, "document.distribution has 2 entries for 3 nodes"),
        ({"distribution": [[1], [1, 2], 3]}, "document.distribution holds lists of unequal"),
        ({"nodes": 2**50}, "document.nodes must be a whole number"),
        ({"version": True}, "document.version is True"),
        ({"rows": 2**53 - 1}, "document.rows must be a whole number"),
        ({"nodes": 2}, "seconds_per_row"),
        ({"node": 2}, "unknown key 'node'"),
        ({"iterations": 0}, "document.iterations must be a whole number of at least 1"),
        ({"accounting": "printed"}, "document.accounting is 'printed'; allowed are exact, paper"),
        ({"format": "fpmdask.run"}, "document.format is 'fpmdask.run'"),
        ({"version": 2}, "document.version is 2; this fpmdask reads version 1"),
        ({"machine": {"latency": 1}}, "machine has the unknown key 'latency'"),
        ({"machine": {"read_overhead_s": [1, 2, -3]}}, "read_overhead_s[2] (node 2) is -3"),
        ({"program": {"sections": [{"tiles": 0}]}}, "program.sections[0]: tiles of a section"),
    ],
)
def test_a_damaged_document_names_the_place(fpm, document, changes, message):
    path = document(**changes)
    result = fpm("mheta", "predict", path)
    assert result.exit_code == 1
    if changes != {"nodes": 2}:
        assert message in result.stderr.replace("\n", " ")
    assert str(path) in result.stderr


def test_files_that_are_no_documents(fpm, tmp_path):
    path = tmp_path / "broken.json"
    kinds = [("{", "is not JSON")]
    kinds += [(text, "document must be a mapping") for text in ("[]", "null", "5", "true", "NaN")]
    for text, message in kinds:
        path.write_text(text)
        result = fpm("mheta", "spectrum", path)
        assert result.exit_code == 1
        assert message in result.stderr
    result = fpm("mheta", "spectrum", tmp_path / "none.json")
    assert result.exit_code == 1
    assert "none.json" in result.stderr


def test_a_path_that_takes_no_time_and_words_of_the_same_accounting(fpm, document):
    idle = {"sections": [{}]}
    shown = fpm("mheta", "spectrum", document(program=idle, machine={}, nodes=3)).stdout
    assert "best" in shown
    path = document(accounting="paper", distribution=[100, 280, 320])
    found = answer(fpm("mheta", "predict", path, "--json"))
    assert f"of {found['iteration_seconds']:.3g} s" in found["why"][-1]


def test_an_unfeasible_path_is_drawn_without_bars(fpm, document, tmp_path):
    path = document(machine={"memory_bytes": [10, 10, 10]})
    target = tmp_path / "path.PNG"
    assert fpm("mheta", "spectrum", path, "--plot", target).exit_code == 0
    assert target.stat().st_size > 1000


@pytest.mark.parametrize("option", ["1,2", "a,b,c", "blk", "1,-2,3", "", "200,200,301"])
def test_bad_distributions_are_refused(fpm, document, option):
    result = fpm("mheta", "predict", document(), "--distribution", option)
    assert result.exit_code == 1
    assert "distribution" in result.stderr


def test_documents_are_written_as_they_are_read():
    found = Document(PROGRAM, MACHINE, 6, np.array([1, 2, 3]), 5, "paper")
    again = Document.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again.to_dict() == found.to_dict()
    assert (again.program, again.machine) == (PROGRAM, MACHINE)
    notes = {"name": "jacobi", "why": "a test", "_about": 3}
    assert Document.from_dict(found.to_dict() | notes).to_dict() == found.to_dict()
