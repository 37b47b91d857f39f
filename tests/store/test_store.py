"""`ModelStore`: what was saved is loaded, nothing is guessed, nothing is half written."""

import json
import multiprocessing
import os
import signal
import warnings
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

import fpmdask
from fpmdask.models import PiecewiseLinearModel
from fpmdask.runtime.identity import Fingerprint
from fpmdask.runtime.known_models import KnownMachine, KnownModel
from fpmdask.store import ModelStore, Saved
from fpmdask.store.document import FORMAT, merged, models_of, path_of

HARDWARE = Fingerprint("Some CPU", "openblas 0.3", "Zen", 2, 2, 0.5, 10**9)


def known(worker="alpha", points=((100, 1.0), (200, 4.0)), **facts):
    units, seconds = zip(*points, strict=True)
    model = PiecewiseLinearModel.from_points(units, seconds)
    one = KnownModel(worker, "sort.local", "numpy 2", '{"dtype":"<f8"}', HARDWARE, False, model)
    return replace(one, **facts)


def node(worker="alpha", **facts):
    figures = {"node": {"read_s_per_byte": 1e-8}, "shared": {}, "seconds_per_row": 0.5}
    one = KnownMachine(worker, "stencil.machine", "numpy 2", "{}", HARDWARE, False, figures)
    return replace(one, **facts)


def by_name(models):
    return sorted(models, key=lambda one: (one.kernel, one.parameters, one.worker))


@pytest.fixture(params=["path", "file://", "memory://"])
def url(request, tmp_path):
    """Return the URL of an empty store."""
    if request.param == "memory://":
        return f"memory://{uuid4().hex}"
    return str(tmp_path / "models") if request.param == "path" else f"{request.param}{tmp_path}/m"


def check_store(url):
    """Check a store of any kind, which is empty."""
    store = ModelStore(url)
    assert store.load() == []
    models = [
        known("alpha"),
        known("beta", [(50, 2.0)]),
        known("beta", [(7, 1.0)], kernel="a/../b c/ü" + "x" * 200),
        known("beta", [(9, 1.0)], parameters="{}"),
        known("gamma", [(3, 1.0)], hardware=replace(HARDWARE, cpu="Another")),
    ]
    assert store.save(models) == Saved(4, ())
    assert by_name(ModelStore(url).load()) == by_name(models)
    assert store.save(models) == Saved(0, ())  # nothing new
    newer = known("alpha", [(100, 2.0), (300, 9.0)])
    assert store.save([newer]).documents == 1
    assert by_name(ModelStore(url).load()) == by_name([newer, *models[1:]])
    assert store.forget(worker="beta", kernel="sort.local") == 2
    assert store.forget(worker="nobody") == 0
    assert store.forget() == 3
    assert store.load() == []
    assert store.documents() == ({}, [])


def test_what_was_saved_is_loaded_replaced_and_forgotten(url):
    check_store(url)


def test_machines_are_stored_beside_models_and_are_none(url):
    store = ModelStore(url)
    assert store.save([known(), node(), node("beta")]) == Saved(2, ())
    assert store.load() == [known()]
    assert by_name(store.known()[0]) == by_name([known(), node(), node("beta")])
    kinds = {document["kind"] for document in store.documents()[0].values()}
    assert kinds == {"model", "machine"}
    assert store.save([node()]).documents == 0
    slower = node(figures={**node().figures, "seconds_per_row": 0.6})
    assert store.save([slower]).documents == 1
    assert by_name(store.known()[0]) == by_name([known(), slower, node("beta")])
    assert store.forget(kernel="stencil.machine") == 2
    assert store.known() == ([known()], [])


def test_half_widths_are_stored_with_the_points_that_have_them(url):
    store = ModelStore(url)
    one = known(half_widths={100.0: 0.25})
    assert store.save([one]).documents == 1
    assert store.load() == [one]
    (document,) = store.documents()[0].values()
    told = [point["half_width"] for point in document["workers"]["alpha"]["points"]]
    assert told == [0.25, None]
    # a point that was measured again has its own
    again = known(points=[(100, 1.5), (200, 4.0)], half_widths={100.0: 0.125, 200.0: 0.5})
    store.save([again])
    assert store.load() == [replace(again, half_widths={100.0: 0.125})]


def test_documents_from_before_there_were_kinds_are_of_models(tmp_path):
    ModelStore(tmp_path).save([known()])
    damaged(tmp_path / path_of(known()), lambda data: data.pop("kind"))
    assert ModelStore(tmp_path).load() == [known()]


def test_the_layout_is_the_documented_one(tmp_path):
    ModelStore(tmp_path).save([known()])
    (path,) = tmp_path.rglob("*.json")
    version, kernel, parameters, hardware = path.relative_to(tmp_path).parts
    assert (version, kernel) == ("v1", "sort.local")
    assert len(parameters) == 16
    assert len(hardware) == 16 + len(".json")
    data = json.loads(path.read_text())
    assert (data["format"], data["version"]) == ("fpmdask.models", 1)
    assert data["hardware"] == replace(HARDWARE, memory_limit=0).to_json()
    assert data["parameters"] == '{"dtype":"<f8"}'
    first = data["workers"]["alpha"]["points"][0]
    assert (first["units"], first["seconds"], first["count"]) == (100.0, 1.0, 1.0)
    assert first["version"] == fpmdask.__version__
    assert datetime.fromisoformat(first["when"]) <= datetime.now(UTC)


def test_memory_is_no_part_of_the_place_but_of_the_model():
    more = known("beta", hardware=replace(HARDWARE, memory_limit=2 * 10**9))
    assert path_of(more) == path_of(known())
    document = merged(None, [known(), more], datetime.now(UTC), "1")
    assert by_name(models_of(document)) == by_name([known(), more])


def test_points_keep_when_they_were_measured_and_old_ones_are_left_out(tmp_path):
    then, now = datetime(2026, 1, 1, tzinfo=UTC), datetime.now(UTC)
    before = merged(None, [known()], then, "0.1")
    added = known(points=[(100, 1.0), (200, 4.0), (300, 9.0)])
    after = merged(before, [added], now, "0.2")
    told = [(p["when"], p["version"]) for p in after["workers"]["alpha"]["points"]]
    assert told == [(then.isoformat(), "0.1")] * 2 + [(now.isoformat(), "0.2")]
    (recent,) = models_of(after, now - timedelta(days=1))
    assert recent.model.units.tolist() == [300.0]
    assert models_of(before, now - timedelta(days=1)) == []


def damaged(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


CHANGES = {
    "newer": (lambda data: data.update(version=2), "version 2; this fpmdask reads version 1"),
    "foreign": (lambda data: data.update(format="other"), f"not of the format {FORMAT}"),
    "other hardware": (
        lambda data: data["hardware"].update(cpu="Another"),
        "of another kernel or hardware",
    ),
    "unknown hardware": (
        lambda data: data["hardware"].update(dna="GATTACA"),
        "damaged or foreign",
    ),
    "negative": (
        lambda data: data["workers"]["alpha"]["points"][0].update(seconds=-1),
        "damaged or foreign",
    ),
    "negative half-width": (
        lambda data: data["workers"]["alpha"]["points"][0].update(half_width=-0.1),
        "they must be >= 0",
    ),
    "no number": (
        lambda data: data["workers"]["alpha"]["points"][0].update(half_width=float("nan")),
        "NaN is no finite number",
    ),
    "no points": (lambda data: data["workers"]["alpha"].pop("points"), "damaged or foreign"),
    "no time": (
        lambda data: data["workers"]["alpha"]["points"][0].update(when="yesterday"),
        "damaged or foreign",
    ),
    "another kind": (lambda data: data.update(kind="song"), "found the kind 'song'"),
    "no machine": (lambda data: data.update(kind="machine"), "damaged or foreign"),
    "no memory": (
        lambda data: data["workers"]["alpha"].update(memory_limit="much"),
        "damaged or foreign",
    ),
}


def test_other_stores_and_files_below_a_store_are_none_of_its_own(url):
    store, below, beside = (ModelStore(f"{url}{more}") for more in ("", "/of/another", "/v1x"))
    for one in (store, below, beside):
        one.save([known()])
    store._files.compare_and_swap("report.json", b"{}", None)
    assert store.known() == ([known()], [])
    assert store.forget() == 1
    assert (store.load(), below.load(), beside.load()) == ([], [known()], [known()])
    assert store._files.read("report.json") == b"{}"


@pytest.mark.parametrize("kind", CHANGES)
def test_what_cannot_be_read_is_named_in_one_warning_and_left_alone(tmp_path, kind):
    change, said = CHANGES[kind]
    store = ModelStore(tmp_path)
    fine = known("beta", parameters="{}")
    store.save([known(), fine])
    path = tmp_path / path_of(known())
    damaged(path, change)
    content = path.read_bytes()
    with pytest.warns(UserWarning, match=said) as told:
        assert store.load() == [fine]
    assert len(told) == 1
    assert path_of(known()) in str(told[0].message)
    saved = store.save([known(), fine])
    assert saved.documents == 0
    assert len(saved.problems) == 1
    with pytest.warns(UserWarning, match=said):
        store.forget()
    assert path.read_bytes() == content


FIGURES = {
    "list": [],
    "node is text": {"node": "slow", "shared": {}},
    "nothing shared": {"node": {}},
    "a figure is text": {"node": {"read_s_per_byte": "fast"}, "shared": {}},
    "a figure is a truth": {"node": {}, "shared": {"latency_s": True}},
    "rows take a list": {"node": {}, "shared": {}, "seconds_per_row": [1.0]},
    "no model": {"node": {}, "shared": {}, "model": {"kind": "none"}},
}


@pytest.mark.parametrize("kind", FIGURES)
def test_figures_that_no_machine_has_are_left_alone(tmp_path, kind):
    """A run on the scheduler would go by them."""
    store = ModelStore(tmp_path)
    store.save([known(), node()])
    path = tmp_path / path_of(node())
    damaged(path, lambda data: data["workers"]["alpha"].update(figures=FIGURES[kind]))
    found, problems = store.known()
    assert found == [known()]
    assert len(problems) == 1
    assert "damaged or foreign" in problems[0]


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_loaded(tmp_path):
    store = ModelStore(tmp_path)
    fine = known("beta", parameters="{}")
    store.save([known(), fine])
    path = tmp_path / path_of(known())
    path.unlink()
    path.symlink_to(path)  # what root cannot read either
    with pytest.warns(UserWarning, match="cannot be read: Too many levels"):
        assert store.load() == [fine]
    saved = store.save([known(), replace(fine, worker="gamma")])
    assert (saved.documents, len(saved.problems)) == (1, 1)
    assert path.is_symlink()


def test_a_pipe_in_the_place_of_a_document_is_not_waited_for(tmp_path):
    store = ModelStore(tmp_path)
    store.save([known()])
    os.mkfifo((tmp_path / path_of(known())).with_name("pipe.json"))
    with pytest.warns(UserWarning, match="cannot be read: not a regular file"):
        assert store.load() == [known()]


def test_an_empty_path_is_refused():
    with pytest.raises(ValueError, match="give a folder or a URL"):
        ModelStore("")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[]", b"{}"])
def test_what_is_no_document_is_left_alone(tmp_path, content):
    store = ModelStore(tmp_path)
    store.save([known()])
    path = tmp_path / path_of(known())
    path.write_bytes(content)
    found, problems = store.read()
    assert (found, len(problems)) == ([], 1)
    assert store.save([known()]).problems == tuple(problems)
    assert path.read_bytes() == content


def save_many(url, worker, count):
    store = ModelStore(url)
    for n in range(1, count + 1):
        store.save([known(worker, [(k, float(k)) for k in range(1, n + 1)])])


@pytest.mark.slow
def test_two_clusters_that_write_at_once_lose_nothing_and_damage_nothing(tmp_path):
    names = ["alpha", "beta", "gamma"]
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=save_many, args=(str(tmp_path), name, 30)) for name in names]
    for writer in writers:
        writer.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a document that is half written would be told of
        while any(writer.is_alive() for writer in writers):
            ModelStore(tmp_path).load()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    found = {one.worker: one.model.units.size for one in ModelStore(tmp_path).load()}
    assert found == dict.fromkeys(names, 30)


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_writes_leaves_whole_documents(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    for turn in range(3):
        writer = spawn.Process(target=save_many, args=(str(tmp_path), f"w{turn}", 1000))
        writer.start()
        while not any(one.worker == f"w{turn}" for one in ModelStore(tmp_path).load()):
            assert writer.is_alive()
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert {one.worker for one in ModelStore(tmp_path).load()} >= {f"w{turn}"}
    # what it left behind is no document, and in nobody's way
    assert ModelStore(tmp_path).save([known("after")]).documents == 1
    files = [path for path in Path(tmp_path).rglob("*") if path.is_file()]
    assert {path.suffix for path in files if path.name != ".lock"} <= {".json", ".tmp"}


def test_what_killed_writers_have_left_is_removed_once_it_is_old(tmp_path):
    store = ModelStore(tmp_path)
    store.save([known()])
    folder = next(tmp_path.rglob("*.json")).parent
    document = next(folder.glob("*.json")).name
    old = datetime.now(UTC).timestamp() - 7200
    left, young, other = (
        folder / f".{document}.{uuid4().hex}.tmp",
        folder / f".{document}.{uuid4().hex}.tmp",
        folder / f"{document}.of-a-user.tmp",
    )
    for path in (left, young, other):
        path.write_text("{")
    for path in (left, other):
        os.utime(path, (old, old))
    assert store.load()  # who reads removes nothing
    assert left.exists()
    store.save([known("beta")])
    assert [path.exists() for path in (left, young, other)] == [False, True, True]
    assert {one.worker for one in store.load()} == {"alpha", "beta"}
