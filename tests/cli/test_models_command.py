"""`fpmdask models`: what is stored is listed, shown, drawn and removed."""

import json
from dataclasses import asdict

import pytest

from fpmdask.models import PiecewiseLinearModel
from fpmdask.runtime.identity import Fingerprint
from fpmdask.runtime.known_models import KnownMachine, KnownModel
from fpmdask.store import ModelStore
from fpmdask.store.document import path_of

HARDWARE = Fingerprint("Some CPU", "openblas", "Zen", 1, 1, None, 0)


def known(worker, kernel="sort.local"):
    model = PiecewiseLinearModel.from_points([100, 200], [1.0, 4.0])
    return KnownModel(worker, kernel, "numpy", '{"dtype":"<f8"}', HARDWARE, False, model)


MODELS = [known("alpha"), known("beta"), known("alpha", "matmul.panel")]


@pytest.fixture
def url(tmp_path):
    ModelStore(tmp_path / "models").save(MODELS)
    return tmp_path / "models"


def test_a_store_is_listed_and_shown(fpm, url):
    rows = json.loads(fpm("models", "list", url, "--json").stdout)
    assert [(row["kernel"], row["workers"], row["points"]) for row in rows] == [
        ("matmul.panel", 1, 2),
        ("sort.local", 2, 4),
    ]
    assert "sort.local" in fpm("models", "list", url).stdout
    shown = fpm("models", "show", url, "--worker", "beta").stdout
    assert "beta" in shown
    assert "alpha" not in shown
    data = json.loads(fpm("models", "show", url, "--kernel", "sort.local", "--json").stdout)
    assert data == [as_json(model.facts) for model in MODELS[:2]]


def as_json(known):
    return json.loads(json.dumps(asdict(known)))


def test_speed_functions_are_drawn(fpm, url, tmp_path):
    answer = fpm("models", "plot", url, tmp_path / "page.html", "--json")
    assert json.loads(answer.stdout) == {"file": str(tmp_path / "page.html"), "models": 3}
    assert (tmp_path / "page.html").read_text().count("<polyline") == 3
    assert "3 models are drawn" in fpm("models", "plot", url, tmp_path / "page.html").stdout


def test_machines_of_mheta_are_listed_shown_and_removed(fpm, url):
    figures = {"node": {"read_s_per_byte": 2e-9}, "shared": {}, "seconds_per_row": 0.25}
    what = "stencil.machine", "numpy 2", '{"depth":1}'
    machine = KnownMachine("gamma", *what, HARDWARE, False, figures)
    ModelStore(url).save([machine])
    rows = json.loads(fpm("models", "list", url, "--json").stdout)
    assert {"kernel": "stencil.machine", "parameters": what[2], "workers": 1, "points": 0} in rows
    shown = fpm("models", "show", url, "--worker", "gamma").stdout
    assert "s per row" in shown
    assert all(figure in shown for figure in ("gamma", "0.25", "0.002", "not known"))
    data = json.loads(fpm("models", "show", url, "--kernel", what[0], "--json").stdout)
    assert data == [as_json(machine)]
    page = url.parent / "page.html"
    assert "3 models are drawn" in fpm("models", "plot", url, page).stdout
    assert "stencil.machine" in page.read_text()
    assert "1 models are removed" in fpm("models", "forget", url, "--worker", "gamma").stdout


def test_models_are_removed_only_where_it_is_said_which(fpm, url):
    assert fpm("models", "forget", url).exit_code == 2
    assert len(ModelStore(url).load()) == 3
    assert json.loads(fpm("models", "forget", url, "--worker", "beta", "--json").stdout) == {
        "forgotten": 1
    }
    assert "2 models are removed" in fpm("models", "forget", url, "--all").stdout
    shown = fpm("models", "show", url)
    assert (shown.stdout, shown.stderr) == (
        "",
        f"no models in {url}; a store has them in its folder v1\n",
    )


def test_what_cannot_be_read_is_told_of_and_a_url_that_cannot_be_is_an_error(fpm, url):
    (url / path_of(MODELS[0])).write_text("{")
    answer = fpm("models", "list", url, "--json")
    assert "is damaged" in answer.stderr
    assert [row["kernel"] for row in json.loads(answer.stdout)] == ["matmul.panel"]
    wrong = fpm("models", "list", "nothing://at/all")
    assert wrong.exit_code == 1
    assert "nothing://at/all" in wrong.stderr


def test_where_no_models_are_it_is_said_which_were_sought(fpm, url, tmp_path):
    for wrong, given, said in (
        (tmp_path / "no", [], "no models in "),
        (url / "v1", [], "no models in "),
        (url, ["--kernel", "x", "--worker", "y"], "no models of the kernel x of the worker y in "),
    ):
        answer = fpm("models", "show", wrong, *given)
        assert (answer.exit_code, answer.stdout) == (0, "")
        assert answer.stderr.startswith(f"{said}{wrong};")
    assert not (tmp_path / "no").exists()
    assert "URL is empty" in fpm("models", "forget", "", "--all").stderr


@pytest.mark.parametrize("command", ["list", "show", "plot", "forget"])
def test_a_url_of_no_file_system_is_said_in_a_sentence(fpm, tmp_path, command):
    more = {"plot": [tmp_path / "page.html"], "forget": ["--all"]}.get(command, [])
    answer = fpm("models", command, "nothing://at/all", *more)
    assert answer.exit_code == 1
    assert "nothing://at/all" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_what_cannot_be_read_is_told_of_and_not_removed(fpm, url):
    path = url / path_of(MODELS[2])
    path.write_text("{")
    answer = fpm("models", "forget", url, "--all", "--json")
    assert json.loads(answer.stdout) == {"forgotten": 2}
    assert "damaged" in answer.stderr
    assert path.read_text() == "{"


def test_a_page_in_no_folder_is_refused(fpm, url, tmp_path):
    answer = fpm("models", "plot", url, tmp_path / "no" / "page.html")
    assert answer.exit_code == 1
    assert "No such file or directory" in answer.stderr
