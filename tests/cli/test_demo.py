"""`fpmdask demo`: what it shows, what it refuses, and once really."""

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from itertools import pairwise
from urllib.request import urlopen

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster, Scheduler, SpecCluster, Worker
from rich.console import Console

from fpmdask.cli import comparison
from fpmdask.cli.comparison import Comparison, WorkerResult
from fpmdask.cli.showing import Show, round_table, show_files, show_result
from fpmdask.errors import FpmdaskError
from fpmdask.lab import Lab
from fpmdask.lab.cluster import registered
from fpmdask.picture import figure
from tests.cli.conftest import SPEEDS, given_run, measured_run

COMMAND = (sys.executable, "-c", "from fpmdask.cli import main; main()")

RESULT = Comparison(
    rows=4000,
    passes=5,
    seed=0,
    workers=tuple(
        WorkerResult(name, s / 20, 900 if name == "beta" else 4000, 1000, 1000 / s, 0, 0.0)
        for name, s in SPEEDS.items()
    ),
    even_seconds=7.0,
    balanced_seconds=3.0,
    measuring_seconds=1.0,
    rounds=2,
    imbalance=0.05,
    reason="balanced",
    deviation=1e-15,
    backend="duty-cycle",
)


NO_PICTURE = ("--no-picture",)


@pytest.fixture
def nothing_runs(monkeypatch):
    """Return a list of the comparisons that were begun, none of which runs."""
    begun = []
    monkeypatch.setattr(comparison, "compare", lambda *args, **options: begun.append(args))
    return begun


def terminal():
    return Console(file=io.StringIO(), width=80)


def shown(console):
    return console.file.getvalue()


def round_event(number, imbalance, seconds):
    return {
        "event": "round",
        "number": number,
        "units": dict.fromkeys(SPEEDS, 1000),
        "kernel_seconds": dict(zip(SPEEDS, seconds, strict=True)),
        "imbalance": imbalance,
    }


def test_the_ratios_of_a_comparison():
    assert RESULT.ratio == pytest.approx(7 / 3)
    assert RESULT.ratio_with_measuring == pytest.approx(7 / 4)
    assert json.loads(json.dumps(RESULT.to_json()))["ratio"] == pytest.approx(7 / 3)


def test_the_progress_tells_stages_rounds_and_losses():
    console = terminal()
    with Show(4000, 5, console) as show:
        show.tell({"event": "stage", "what": "starting", "workers": list(SPEEDS)})
        show.tell({"event": "stage", "what": "balancing"})
        show.tell(round_event(1, 3.0, [0.1, 0.2, 0.3, 0.4]))
        show.tell(round_event(2, None, [0.2, 0.2, None, float("inf")]))
        show.tell({"event": "left out", "worker": "gamma", "reason": "left the cluster"})
        show.tell({"event": "share", "worker": "alpha"})
        show.tell({"event": "anything else"})
    text = shown(console)
    assert "✓ starting" in text
    assert "✓ balancing" in text
    assert "! gamma: left the cluster" in text
    assert "round 2: imbalance 3.00 → ?" in text
    assert [line.split()[:3] for line in text.splitlines() if "200.0 ms" in line] == [
        ["alpha", "1000", "200.0"],
        ["beta", "1000", "200.0"],
    ]


def test_a_pipe_gets_each_line_when_something_begins_and_ends():
    console = terminal()
    with Show(4000, 5, console) as show:
        assert "5 times X" in shown(console)
        address = f"the dashboard is at http://127.0.0.1:8787/{'long/' * 20}fpmdask"
        show.tell({"event": "stage", "what": address, "workers": list(SPEEDS)})
        assert f"… {address}\n" in shown(console)
        show.tell(round_event(1, 3.0, [0.1, 0.2, 0.3, 0.4]))
        show.tell({"event": "stage", "what": "balancing"})
        assert shown(console).endswith("s\n… balancing\n")
    assert shown(console).count("imbalance 3.00") == 1


def test_a_stage_that_fails_is_not_ticked_off():
    console = terminal()
    show = Show(4000, 5, console).__enter__()
    show.tell({"event": "stage", "what": "starting"})
    show.__exit__(FpmdaskError, FpmdaskError("no"), None)
    assert "✓" not in shown(console)


def test_the_slowest_worker_has_the_longest_bar():
    console = terminal()
    console.print(round_table([round_event(1, 3.0, [0.1, 0.2, 0.3, 0.4])], list(SPEEDS)))
    bars = [line.count("█") for line in shown(console).splitlines() if "ms" in line]
    assert bars == [8, 16, 24, 32]


def test_the_result_fits_a_terminal_and_names_the_files():
    console = terminal()
    show_result(RESULT, console)
    show_files({"picture": "/a/b.png"}, console)
    text = shown(console)
    assert "2.33 times as fast (1.75 with" in text
    assert "beta's memory holds 900 rows" in text
    assert text.count("memory holds") == 1
    assert "Picture: /a/b.png" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_nothing_starts_when_the_files_could_not_be_written(fpm, tmp_path):
    for option in ("--picture", "--log"):
        result = fpm("demo", option, tmp_path / "no" / "file.png")
        assert result.exit_code == 1
        assert "no folder" in result.stderr
    result = fpm("demo", "--picture", tmp_path / "picture.txt")
    assert result.exit_code == 1
    assert "must end in .png" in result.stderr
    assert "epsilon" in fpm("demo", "--epsilon", -1).stderr
    assert fpm("demo", "--rows", 3).exit_code == 2
    assert fpm("demo", "--definition", "no-such", "--json", "--no-picture").exit_code == 1


@pytest.mark.parametrize("option", ["--picture", "--log"])
def test_a_folder_that_takes_no_files_is_refused_before_anything_starts(fpm, nothing_runs, option):
    # root, too, can write nothing there
    result = fpm("demo", option, "/proc/file.png", *([] if option == "--picture" else NO_PICTURE))
    assert result.exit_code == 1
    assert "nothing can be written to /proc" in result.stderr
    assert nothing_runs == []


def test_a_file_that_cannot_be_overwritten_is_refused(fpm, nothing_runs, tmp_path, monkeypatch):
    (tmp_path / "demo.png").touch()
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everything
    result = fpm("demo", "--picture", tmp_path / "demo.png")
    assert result.exit_code == 2
    assert "not writable" in result.stderr
    assert nothing_runs == []


def test_rows_beyond_the_memory_are_refused_before_anything_starts(fpm, nothing_runs):
    for rows in (3_000_000_000, 10**400):
        result = fpm("demo", "--rows", rows, *NO_PICTURE)
        assert result.exit_code == 1
        assert "GB of memory that are available suffice for --rows " in result.stderr
        assert result.stdout == ""
    assert nothing_runs == []


def test_a_definition_that_is_not_there_is_said_before_the_title(fpm, nothing_runs):
    result = fpm("demo", "--definition", "no-such", *NO_PICTURE)
    assert result.exit_code == 1
    assert "no-such" in result.stderr
    assert result.stdout == ""
    assert nothing_runs == []


@pytest.mark.parametrize("as_json", [False, True])
def test_the_result_is_shown_even_if_its_files_cannot_be_written(fpm, monkeypatch, as_json):
    def full(path):
        raise OSError(28, "No space left on device", str(path))

    report = measured_run()
    monkeypatch.setattr(type(report), "save", lambda self, path: full(path))
    monkeypatch.setattr(comparison, "compare", lambda *args, **options: (RESULT, report))
    result = fpm("demo", "--log", "run.json", *NO_PICTURE, *(["--json"] if as_json else []))
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert ('"ratio"' if as_json else "2.33 times as fast") in result.stdout
    assert "Log:" not in result.stdout


def test_what_is_not_installed_is_named_with_its_extra(fpm, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = fpm("demo")
    assert result.exit_code == 1
    assert 'rich and matplotlib not found; run `pip install "fpmdask[demo]"`' in result.stderr
    with pytest.raises(FpmdaskError, match="matplotlib not found"):
        figure(measured_run())


@pytest.mark.slow
def test_the_picture_has_the_line_that_balances():
    report, seconds = measured_run(), dict.fromkeys(SPEEDS, 1.0)
    axes, bars = figure(
        report,
        even=seconds,
        balanced=seconds,
        order=list(SPEEDS),
        unit="rows",
        fits={"beta": 900},
    ).axes
    dashed = next(line for line in axes.lines if line.get_linestyle() == "--")
    seconds = dashed.get_xdata()[1] / dashed.get_ydata()[1]
    together = sum(model.units_within(seconds) for model in report.models.values())
    assert together == pytest.approx(4000)
    assert axes.get_xlabel() == "rows per worker"
    assert [text.get_text() for text in bars.get_yticklabels()] == list(SPEEDS)
    assert len(bars.patches) == 8
    full = next(text for text in axes.texts if text.get_text() == "beta's memory is full")
    assert full.xy == (900, pytest.approx(float(report.models["beta"].speed(900))))
    alone = figure(report, operations_per_unit=1e9)
    assert [axes.get_ylabel() for axes in alone.axes] == ["speed, Gflop/s"]


@pytest.mark.slow
def test_the_labels_of_many_workers_do_not_cover_each_other():
    report = measured_run()
    many = {f"w{i}": report.models["alpha"] for i in range(30)}
    report = dataclasses.replace(
        report,
        workers=tuple(many),
        models=many,
        distribution=np.full(30, 1500),
    )
    heights = sorted(text.get_position()[1] for text in figure(report).axes[0].texts)
    gaps = [b - a for a, b in pairwise(heights)]
    assert len(heights) == 30
    assert min(gaps) >= 0.99 / 30


def test_a_run_that_measured_nothing_cannot_be_drawn():
    with pytest.raises(FpmdaskError, match="measured nothing"):
        figure(given_run())


@pytest.mark.slow
def test_rows_in_memory_and_on_disk_are_multiplied_alike():
    """Shares that begin and end within blocks; the second worker's do not fit into its memory."""
    shares, seed = {"large": 1500, "small": 4000}, 3
    # the process of the tests takes more than the limit
    unheeded = {f"distributed.worker.memory.{at}": False for at in ("target", "spill", "pause")}
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(unheeded))
        cluster = stack.enter_context(
            SpecCluster(
                workers={
                    name: {
                        "cls": Worker,
                        "options": {"name": name, "memory_limit": limit, "nthreads": 1},
                    }
                    for name, limit in (("large", "1 GB"), ("small", "64 MB"))
                },
                scheduler={"cls": Scheduler, "options": {"dashboard_address": ":0"}},
            )
        )
        client = stack.enter_context(Client(cluster))
        found = comparison._iterate(client, shares, 3, seed)
    assert found["small"].most == 2500
    assert found["large"].most > 1500
    deviation = comparison._deviation([found], 5500, 3, seed)
    assert deviation < 1e-12
    with pytest.raises(FpmdaskError, match="deviate from NumPy's by"):
        comparison._deviation([found], 5499, 3, seed)


@pytest.mark.slow
def test_a_run_does_not_wait_for_a_worker_that_has_left():
    options = {"n_workers": 1, "processes": False, "dashboard_address": ":0"}
    with (
        LocalCluster(**options) as cluster,
        Client(cluster) as client,
        pytest.raises(FpmdaskError, match="beta left in the middle of a run"),
    ):
        comparison._iterate(client, {0: 64, "beta": 64}, 1, seed=0)


@pytest.mark.slow
def test_workers_are_there_while_the_client_asks_for_none_of_them():
    """As it does every two seconds, `scheduler_info` then returned none."""
    with (
        dask.config.set({"distributed.client.scheduler-info-interval": "1ms"}),
        LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        assert {len(registered(client)) for _ in range(500)} == {2}


@pytest.mark.slow
def test_a_worker_that_has_left_is_named_with_the_end_of_its_log():
    lab = Lab.from_toml("cliff4", name=f"test-{os.getpid()}-left")

    def kill_beta(event):
        if str(event.get("what", "")).startswith("even split"):
            lab.kill_worker("beta")

    with pytest.raises(comparison.WorkersLeft, match=r"beta left .*beta's log ends with: .*plugin"):
        comparison.compare(lab, 4096, 2, seed=0, epsilon=0.25, tell=kill_beta)


@pytest.mark.slow
def test_the_demo_really_runs_and_shows_a_cliff(tmp_path):
    """The whole command: four workers held by a duty cycle, a checked result, the files."""
    given = ["--passes", "2", "--epsilon", "0.01", "--log", "run.json", "--picture", "demo.png"]
    answer = subprocess.run(
        [*COMMAND, "demo", "--json", *given],
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert [worker["name"] for worker in result["workers"]] == list(SPEEDS)
    assert sum(worker["balanced_rows"] for worker in result["workers"]) == 65536
    assert {worker["even_rows"] for worker in result["workers"]} == {16384}
    assert [w["name"] for w in result["workers"] if w["memory_rows"] < 16384] == ["beta"]
    assert result["deviation"] < 1e-12
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert result["picture"] == str(tmp_path / "demo.png")
    log = json.loads((tmp_path / "run.json").read_text())
    points = {name: model["units"] for name, model in log["models"].items()}
    # each is timed at three sizes; a model begins anew where a busy machine has changed the speed
    timed = {name: {one["units"][name] for one in log["rounds"]} for name in points}
    assert all(len(sizes) >= 3 for sizes in timed.values()), timed
    for name, units in points.items():
        assert log["rounds"][-1]["units"][name] in units, (name, points)
        assert set(units) <= timed[name], (name, points, timed)
    # what is beyond its 10000 rows comes and goes at 100 MB/s at most
    evenly = log["rounds"][0]
    assert evenly["seconds"]["beta"] > (16384 - 10000) * 2 * 2048 * 1e-8
    assert result["workers"][1]["balanced_rows"] < 16384
    replayed = subprocess.run(
        [*COMMAND, "replay", "run.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.slow
def test_the_workers_and_the_page_stay_until_they_are_interrupted(tmp_path):
    pytest.importorskip("bokeh", reason="bokeh serves the dashboard")
    # who starts tests in the background of a script has them ignore Ctrl-C
    given = ["demo", "--rows", "4096", "--passes", "1", "--json", "--no-picture", "--dashboard"]
    listening = "import signal as s; s.signal(s.SIGINT, s.default_int_handler); "
    with subprocess.Popen(
        [*COMMAND[:-1], listening + COMMAND[-1], *given],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            pages = [line.split()[-1] for line in (process.stderr.readline() for _ in range(2))]
            assert pages[0] == pages[1]
            with urlopen(pages[1], timeout=30) as page:
                assert page.status == 200
                assert b"fpmdask" in page.read()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert sum(worker["balanced_rows"] for worker in json.loads(out)["workers"]) == 4096
