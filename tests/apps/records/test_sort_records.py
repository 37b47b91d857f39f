"""`Balancer.sort_records` on a cluster: every record, in order, whatever happens meanwhile."""

import asyncio
import contextlib
import errno
import gc
import json
import os
import shutil
import threading
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Worker, get_worker
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.records import plan
from fpmdask.apps.records.coordinator import sorting, state
from fpmdask.apps.records.worker import share, survey
from fpmdask.errors import CoordinatorError, RecordsError
from fpmdask.records import KINDS, verify, write_records
from fpmdask.records.files import Folder
from fpmdask.records.format import RECORD_NBYTES, keys, order
from fpmdask.runtime.worker.spill import Spilled
from tests.eventually import side_of
from tests.tuned import tuned

CONFIG = {"distributed.scheduler.active-memory-manager.start": False}
SIZES = [4000, 0, 2500, 1]


# Runs and parts of 500 records at most, so that there are several.
SMALL = tuned(records={"part_most_nbytes": 500 * RECORD_NBYTES, "part_least_nbytes": 1})


def cluster(workers=3, nthreads=1, small=False, **options):
    threads = [("127.0.0.1", nthreads)] * workers
    config = {**CONFIG, **(SMALL if small else {})}
    return gen_cluster(client=True, nthreads=threads, config=config, timeout=60, **options)


@pytest.fixture
def little_memory(monkeypatch):
    """Memory for hardly more than a run and a part: nearly everything is spilled."""
    monkeypatch.setattr(state, "memory_of", lambda *worker: state.Memory(200_000.0, 70_000.0))


def expected(written):
    data = b"".join(Path(path).read_bytes() for path in written.paths)
    records = np.frombuffer(data, np.uint8).reshape(-1, RECORD_NBYTES)
    return records[order(records)].tobytes()


def found_in(target):
    paths = sorted(Path(target).glob("part-*"))
    return b"".join(path.read_bytes() for path in paths)


def only_the_result(target):
    names = sorted(os.listdir(target))
    return names[0] == "manifest.json" and all(name.startswith("part-") for name in names[1:])


def spill_files(workers):
    """Return the files without a name in the workers' folders that are still open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # of the listing itself
            found.append(os.readlink(link))
    folders = tuple(worker.local_directory for worker in workers)
    return [name for name in found if name.startswith(folders) and name.endswith("(deleted)")]


@pytest.fixture
def held(monkeypatch):
    """Names of workers that make no part before their run is over."""
    names, original = set(), share._Share._part

    def part(self, *given):
        if str(self.side.worker.name) in names:
            self.space.cancelled.wait(30)
        original(self, *given)

    monkeypatch.setattr(share._Share, "_part", part)
    return names


async def all_idle(workers):
    """Wait until no task runs any more: those of a run that has failed stop at their next part."""
    for worker in workers:
        while worker.state.executing_count or worker.plugins["fpmdask"].side.spaces:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", KINDS)
@cluster(nthreads=2, small=True)
async def test_records_are_sorted_stably_into_parts(c, s, *workers, kind, tmp_path):
    written = write_records(tmp_path / "in", SIZES, kind=kind, seed=1)
    balancer = await fpmdask.Balancer(c)
    target = str(tmp_path / "out")
    found = await balancer.sort_records(str(tmp_path / "in" / "*"), target)
    assert (found.records, found.checksum) == (written.records, written.checksum)
    assert found_in(target) == expected(written)
    assert only_the_result(target)
    assert verify(target, records=written.records, checksum=written.checksum).ok
    assert len(found.parts) > 12
    assert found.paths == sorted(map(str, Path(target).glob("part-*")))
    shares = balancer.report.shares
    assert sum(share["units"] for share in shares) == written.records
    assert sum(share["records_read"] for share in shares) == written.records
    assert balancer.report.bytes_moved == sum(share["nbytes_received"] for share in shares) > 0
    assert 0.5 < balancer.report.bytes_moved_per_byte < 0.8  # two of three, less the last parts
    assert balancer.report.app == "records"
    assert "part-00000" in found._repr_html_()
    assert str(written.records) in repr(found)


@pytest.mark.parametrize("channels", [True, False])
@cluster(small=True)
async def test_what_memory_has_no_room_for_is_spilled(
    c, s, *workers, channels, little_memory, tmp_path
):
    written = write_records(tmp_path / "in", [20_000, 10_000], kind="duplicates", seed=2)
    balancer = await fpmdask.Balancer(c)
    if not channels:
        for worker in workers:
            side = await side_of(worker)
            await side.channels.close()
            side.channels = None
    await balancer.sort_records(written.paths, tmp_path / "out", checksum=False)
    assert found_in(tmp_path / "out") == expected(written)
    spilled = [share["nbytes_spilled"] for share in balancer.report.shares]
    assert min(spilled) > 0
    assert sum(spilled) > written.records * RECORD_NBYTES / 2
    assert verify(str(tmp_path / "out"), checksum=written.checksum).ok


STEPS = ["survey", "claim", "sort", "count", "plan", "exchange", "finish"]


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@cluster(small=True)
async def test_a_worker_that_leaves_in_any_step_costs_nothing_but_time(
    c, s, *workers, step, little_memory, tmp_path
):
    written = write_records(tmp_path / "in", SIZES, kind="skewed", seed=3)
    closing = []

    def close_one(event):
        if event["event"] == "step" and event["step"] == step and not closing:
            closing.append(asyncio.ensure_future(workers[1].close()))

    balancer = await fpmdask.Balancer(c, progress=close_one)
    found = await balancer.sort_records(written.paths, tmp_path / "out")
    await closing[0]
    assert found.checksum == written.checksum
    assert found_in(tmp_path / "out") == expected(written)
    assert only_the_result(tmp_path / "out")


@cluster(small=True)
async def test_who_stays_reads_nothing_twice(
    c, s, *workers, little_memory, held, tmp_path, monkeypatch
):
    held.add("1")
    written = write_records(tmp_path / "in", SIZES, seed=3)
    read = []
    original = share.read

    def counted(file, first, records):
        read.append(len(records))
        original(file, first, records)

    monkeypatch.setattr(share, "read", counted)
    closing = []

    def close_one(event):
        if event["event"] == "step" and event["step"] == "exchange" and not closing:
            closing.append(asyncio.ensure_future(workers[1].close()))

    balancer = await fpmdask.Balancer(c, progress=close_one)
    await balancer.sort_records(written.paths, tmp_path / "out")
    await closing[0]
    assert written.records < sum(read) < 1.5 * written.records
    assert found_in(tmp_path / "out") == expected(written)


@cluster(small=True)
async def test_a_second_call_takes_up_what_a_failed_one_has_finished(
    c, s, *workers, tmp_path, monkeypatch
):
    written = write_records(tmp_path / "in", SIZES, kind="duplicates", seed=4)
    original, made = share._Share._part, []

    def fails(self, number, pieces, records):
        if len(made) >= 7:
            raise RecordsError("enough")
        made.append(number)
        original(self, number, pieces, records)

    monkeypatch.setattr(share._Share, "_part", fails)
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(RecordsError, match=r"enough \(worker"):
        await balancer.sort_records(written.paths, tmp_path / "out")
    await all_idle(workers)
    left = sorted(os.listdir(tmp_path / "out"))
    assert "manifest.json" not in left
    assert not [name for name in left if name.endswith(".tmp")]
    finished = {name for name in left if name.startswith("part-")}
    assert finished
    times = {name: os.stat(tmp_path / "out" / name).st_mtime_ns for name in finished}
    with pytest.raises(RecordsError, match="another sort"):
        await balancer.sort_records(written.paths[:1], tmp_path / "out")
    made.clear()
    # fewer workers, other shares: the parts stay as they were planned
    await workers[2].close()
    monkeypatch.setattr(share._Share, "_part", original)
    found = await balancer.sort_records(written.paths, tmp_path / "out")
    assert found.checksum == written.checksum
    assert {name: os.stat(tmp_path / "out" / name).st_mtime_ns for name in finished} == times
    assert found_in(tmp_path / "out") == expected(written)
    assert only_the_result(tmp_path / "out")
    again = await balancer.sort_records(written.paths, tmp_path / "out")
    assert again == found
    assert balancer.report.reason == "complete already"


@cluster(workers=2, small=True)
async def test_an_empty_part_is_made_where_it_alone_is_missing(
    c, s, *workers, tmp_path, monkeypatch
):
    written = write_records(tmp_path / "in", [2000], seed=4)
    target = tmp_path / "out"

    def one_empty(*arguments):
        first, *others = plan.parts_of(*arguments)
        return [first, 0, *others]

    async def fails(self):
        raise RecordsError("enough")

    monkeypatch.setattr(sorting, "parts_of", one_empty)
    monkeypatch.setattr(state.RecordsSort, "finish", fails)
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(RecordsError, match="enough"):
        await balancer.sort_records(written.paths, target)
    monkeypatch.undo()
    (target / "part-00001").unlink()
    found = await balancer.sort_records(written.paths, target)
    assert found.parts[1]["records"] == 0
    assert found_in(target) == expected(written)


@cluster(small=True)
async def test_a_cancelled_sort_leaves_nothing_but_finished_parts(c, s, *workers, tmp_path):
    written = write_records(tmp_path / "in", [50_000], seed=4)
    begun = asyncio.Event()

    def note(event):
        if event["event"] == "part":
            begun.set()

    balancer = await fpmdask.Balancer(c, progress=note)
    sorting = asyncio.ensure_future(balancer.sort_records(written.paths, tmp_path / "out"))
    await begun.wait()
    sorting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sorting
    await all_idle(workers)
    left = os.listdir(tmp_path / "out")
    assert not [name for name in left if name.endswith(".tmp")]
    found = await balancer.sort_records(written.paths, tmp_path / "out")
    assert found.checksum == written.checksum
    assert found_in(tmp_path / "out") == expected(written)


@cluster()
async def test_local_files_are_read_by_those_who_see_them(c, s, *workers, tmp_path, monkeypatch):
    """Worker 0 does not see one file, worker 1 not the other."""
    written = write_records(tmp_path / "in", [3000, 2000], seed=5)
    original_find, original_read = survey.find, share.read
    mine = {"0": written.paths[0], "1": written.paths[1]}
    readers = []

    def find(sources):
        files = original_find(sources)
        seen = mine.get(str(get_worker().name))
        files = [file for file in files if seen in (None, file.path)]
        if not files:
            raise survey.NotHere(f"there is no file {sources[0]}")
        return files

    def read(file, first, records):
        readers.append(file.path)
        original_read(file, first, records)

    monkeypatch.setattr(survey, "find", find)
    monkeypatch.setattr(share, "read", read)
    balancer = await fpmdask.Balancer(c, workers=["0", "1"])
    for sources, target in ((written.paths, "a"), (tmp_path / "in" / "*", "b")):
        await balancer.sort_records(sources, tmp_path / target)
        assert found_in(tmp_path / target) == expected(written)
        units = [share["records_read"] for share in balancer.report.shares]
        assert units == [3000, 2000]


@cluster(workers=2)
async def test_files_are_in_the_order_of_the_sources_whoever_tells_of_them_first(
    c, s, *workers, tmp_path, monkeypatch
):
    """Each worker sees one of two files of the same keys."""
    written = write_records(tmp_path / "in", [300, 300], kind="duplicates", seed=5)
    find, ask = survey.find, state.RecordsSort._ask
    turned = False

    def find_own(sources):
        own = written.paths[int(get_worker().name)]
        files = [file for file in find(sources) if file.path == own]
        if not files:
            raise survey.NotHere(f"there is no file {sources[0]}")
        return files

    async def ask(self, *arguments, original=ask):
        answers = await original(self, *arguments)
        return dict(sorted(answers.items(), reverse=turned))

    monkeypatch.setattr(survey, "find", find_own)
    monkeypatch.setattr(state.RecordsSort, "_ask", ask)
    balancer = await fpmdask.Balancer(c)
    for n, sources in enumerate((written.paths, tmp_path / "in" / "*")):
        for turned in (False, True):
            target = tmp_path / f"{n} {turned}"
            found = await balancer.sort_records(sources, target)
            assert found_in(target) == expected(written)
            turned = not turned
            assert await balancer.sort_records(sources, target) == found


@pytest.mark.parametrize("kind", KINDS)
@cluster()
async def test_a_given_distribution_is_kept(c, s, *workers, kind, tmp_path):
    written = write_records(tmp_path / "in", [6000], kind=kind, seed=6)
    balancer = await fpmdask.Balancer(c)
    given = {"0": 4000, "1": 1900, "2": 100}
    await balancer.sort_records(written.paths, tmp_path / "out", distribution=given)
    for each in balancer.report.shares:
        assert each["records_read"] == given[each["worker"]]
        assert each["units"] == pytest.approx(given[each["worker"]], rel=0.01)
    with pytest.raises(RecordsError, match="5999 records, the files 6000"):
        await balancer.sort_records(
            written.paths, tmp_path / "2", distribution={"0": 4000, "1": 1999}
        )
    with pytest.raises(RecordsError, match="no worker nobody"):
        await balancer.sort_records(written.paths, tmp_path / "2", distribution={"nobody": 6000})


@cluster(workers=2, small=True)
async def test_every_run_that_is_sorted_is_a_sign_of_life(c, s, *workers, tmp_path):
    """Of a worker that has more of them to sort than others, which wait for it."""
    written = write_records(tmp_path / "in", [6000], seed=6)
    balancer = await fpmdask.Balancer(c)
    plugin, heard = s.plugins["fpmdask"], []

    def told(worker, run, ticket, event):
        if run in plugin.runs and "done" in event:
            heard.append(tuple(event["done"]))
        plugin._event(worker, run, ticket, event)

    s.stream_handlers["fpmdask-event"] = told
    await balancer.sort_records(written.paths, tmp_path / "out")
    assert sorted(heard)[0][0] == 0
    assert sum(end - first for first, end in heard) == 6000


@pytest.mark.slow
@pytest.mark.parametrize("striped", [False, True])
@cluster(workers=6)
async def test_files_of_the_same_keys_are_cut_as_exactly(c, s, *workers, striped, tmp_path):
    """Runs that were all sampled at the same ranks would say the same, six times."""
    written = write_records(tmp_path / "one", [60_000], seed=6)
    [path] = written.paths
    made = np.fromfile(path, np.uint8).reshape(-1, RECORD_NBYTES)
    made = made[np.argsort(keys(made), kind="stable")]
    (tmp_path / "in").mkdir()
    for n in range(6):
        (made[n::6] if striped else made).tofile(tmp_path / "in" / str(n))
    each = 10_000 if striped else 60_000
    balancer = await fpmdask.Balancer(c)
    given = {str(n): each for n in range(6)}
    await balancer.sort_records(tmp_path / "in" / "*", tmp_path / "out", distribution=given)
    for own in balancer.report.shares:
        assert own["units"] == pytest.approx(each, rel=0.01)
    assert verify(tmp_path / "out").ok


@cluster(workers=2, small=True)
async def test_who_has_much_more_to_do_is_not_taken_for_hanging(
    c, s, *workers, tmp_path, monkeypatch
):
    written = write_records(tmp_path / "in", [6000], seed=6)
    original = share.read

    def slow(file, first, records):
        time.sleep(0.3)
        original(file, first, records)

    monkeypatch.setattr(share, "read", slow)
    balancer = await fpmdask.Balancer(c)
    with dask.config.set({"fpmdask.hang": "1s"}):
        await balancer.sort_records(
            written.paths, tmp_path / "out", distribution={"0": 5990, "1": 10}
        )
    assert not balancer.report.left_out
    assert found_in(tmp_path / "out") == expected(written)


@cluster(small=True)
async def test_a_given_distribution_is_shared_out_again_where_a_worker_is_lost(
    c, s, *workers, tmp_path
):
    written = write_records(tmp_path / "in", [6000], seed=6)
    closing = []

    def close_one(event):
        if event["event"] == "step" and event["step"] == "exchange" and not closing:
            closing.append(asyncio.ensure_future(workers[0].close()))

    balancer = await fpmdask.Balancer(c, progress=close_one)
    given = {"0": 4000, "1": 1900, "2": 100}
    await balancer.sort_records(written.paths, tmp_path / "out", distribution=given)
    await closing[0]
    assert found_in(tmp_path / "out") == expected(written)
    units = {each["worker"]: each["records_read"] for each in balancer.report.shares}
    assert units["1"] / units["2"] == pytest.approx(19, rel=0.1)


@cluster(workers=1, small=True)
async def test_a_worker_that_comes_takes_the_place_of_the_last_one(c, s, worker, held, tmp_path):
    held.add("0")
    written = write_records(tmp_path / "in", SIZES, seed=6)
    changing = []

    async def change():
        await worker.close()
        changing.append(await Worker(s.address, name="new"))

    def replace(event):
        if event["event"] == "step" and event["step"] == "exchange" and not changing:
            changing.append(asyncio.ensure_future(change()))

    balancer = await fpmdask.Balancer(c, progress=replace)
    await balancer.sort_records(written.paths, tmp_path / "out")
    await changing[0]
    assert found_in(tmp_path / "out") == expected(written)
    assert [each["worker"] for each in balancer.report.shares] == ["new"]
    await changing[1].close()


@cluster(workers=2)
async def test_a_file_that_only_a_worker_without_a_share_sees_is_read_by_it(
    c, s, *workers, tmp_path, monkeypatch
):
    written = write_records(tmp_path / "in", [1000], seed=6)
    original = survey.find

    def find(sources):
        if str(get_worker().name) == "1":
            raise survey.NotHere(f"there is no file {sources[0]}")
        return original(sources)

    monkeypatch.setattr(survey, "find", find)
    balancer = await fpmdask.Balancer(c)
    await balancer.sort_records(written.paths, tmp_path / "out", distribution={"0": 0, "1": 1000})
    read = {each["worker"]: each["records_read"] for each in balancer.report.shares}
    assert read == {"0": 1000, "1": 0}
    assert found_in(tmp_path / "out") == expected(written)


@cluster(workers=2, small=True)
async def test_a_later_call_clears_what_a_finished_sort_has_left(
    c, s, *workers, tmp_path, monkeypatch
):
    written = write_records(tmp_path / "in", [3000], seed=6)
    target = tmp_path / "out"
    left = [f"{survey.JOB}.x.tmp", ".part-00001.json", ".part-00001.x.tmp", ".manifest.json.x.tmp"]

    def killed(self, name):
        raise RecordsError("killed")

    balancer = await fpmdask.Balancer(c)
    monkeypatch.setattr(Folder, "remove", killed)
    with pytest.raises(RecordsError, match="killed"):
        await balancer.sort_records(written.paths, target)
    monkeypatch.undo()
    assert {survey.JOB, ".part-00001.json"} < {*os.listdir(target)}
    found = await balancer.sort_records(written.paths, target)
    assert balancer.report.reason == "complete already"
    assert only_the_result(target)
    for name in left:
        (target / name).touch()
    assert await balancer.sort_records(written.paths, target) == found
    assert only_the_result(target)


@cluster(workers=2, small=True)
async def test_a_result_that_was_moved_is_found_where_it_is(c, s, *workers, tmp_path):
    written = write_records(tmp_path / "in", [3000], seed=6)
    balancer = await fpmdask.Balancer(c)
    await balancer.sort_records(written.paths, tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "moved")
    found = await balancer.sort_records(written.paths, tmp_path / "moved")
    assert balancer.report.reason == "complete already"
    assert all(Path(path).is_file() for path in found.paths)


@pytest.mark.parametrize(("room", "is_target"), [(200_000, False), (500_000, True)])
@cluster(workers=2)
async def test_workers_share_what_is_free_on_one_disk(
    c, s, *workers, room, is_target, tmp_path, monkeypatch
):
    """Each alone would have enough; the sorted records need 300,000 bytes, too, if it is there."""
    written = write_records(tmp_path / "in", [3000], seed=6)
    original = survey._survey

    def surveyed(*given):
        found = original(*given)
        return {**found, "local_nbytes": float(room), "target_is_local": is_target}

    monkeypatch.setattr(survey, "_survey", surveyed)
    monkeypatch.setattr(state, "memory_of", lambda *worker: state.Memory(1e8, 0.0))
    balancer = await fpmdask.Balancer(c)
    says = r"3000 records do not fit into the memory and disks of the 2 .* room for 2000;"
    with pytest.raises(RecordsError, match=says):
        await balancer.sort_records(written.paths, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@cluster(workers=2, worker_kwargs={"memory_limit": 0}, small=True)
async def test_workers_without_a_limit_spill_where_their_machine_has_no_memory(
    c, s, *workers, tmp_path, monkeypatch
):
    written = write_records(tmp_path / "in", [3000], seed=6)
    original = survey._survey
    monkeypatch.setattr(
        survey, "_survey", lambda *given: {**original(*given), "available_nbytes": 1e5}
    )
    balancer = await fpmdask.Balancer(c)
    await balancer.sort_records(written.paths, tmp_path / "out")
    assert sum(each["nbytes_spilled"] for each in balancer.report.shares) > 0
    assert found_in(tmp_path / "out") == expected(written)


@cluster(workers=2, small=True)
async def test_parts_that_are_gone_later_are_noticed(c, s, *workers, tmp_path):
    written = write_records(tmp_path / "in", [3000], seed=6)
    balancer = await fpmdask.Balancer(c)
    await balancer.sort_records(written.paths, tmp_path / "out")
    os.unlink(tmp_path / "out" / "part-00002")
    with pytest.raises(RecordsError, match="part-00002 is gone"):
        await balancer.sort_records(written.paths, tmp_path / "out")


@cluster(workers=2, small=True)
async def test_a_failed_sort_keeps_neither_spill_files_nor_runs(
    c, s, *workers, little_memory, tmp_path, monkeypatch
):
    written = write_records(tmp_path / "in", [20_000], seed=6)

    def fails(self, number, pieces, records):
        assert spill_files(workers)
        raise RecordsError("enough")

    monkeypatch.setattr(share._Share, "_part", fails)
    balancer = await fpmdask.Balancer(c)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(RecordsError, match="enough"):
            await balancer.sort_records(written.paths, tmp_path / "out")
        await all_idle(workers)
        assert not spill_files(workers)
    finally:
        gc.enable()


@cluster()
async def test_no_record_and_one_record(c, s, *workers, tmp_path):
    balancer = await fpmdask.Balancer(c)
    for count in (0, 1, 2):
        written = write_records(tmp_path / f"in{count}", [count])
        target = str(tmp_path / f"out{count}")
        found = await balancer.sort_records(written.paths[0], target)
        assert (found.records, found.checksum) == (count, written.checksum)
        assert found_in(target) == expected(written)
        assert verify(target, records=count, checksum=written.checksum).ok


@cluster(small=True)
async def test_other_file_systems(c, s, *workers):
    folder = Folder("memory://unsorted")
    folder.make()
    data = np.random.default_rng(0).integers(0, 256, (3000, 100), np.uint8)
    with folder.writing("x") as write:
        write(data)
    balancer = await fpmdask.Balancer(c)
    found = await balancer.sort_records("memory://unsorted/*", "memory://sorted")
    assert verify("memory://sorted", records=3000, checksum=found.checksum).ok
    for url in ("memory://unsorted", "memory://sorted"):
        Folder(url).fs.rm(url, recursive=True)


@pytest.mark.parametrize("where", ["spill", "target"])
@cluster(small=True)
async def test_a_full_disk_is_said_and_loses_nothing(
    c, s, *workers, where, little_memory, tmp_path, monkeypatch
):
    written = write_records(tmp_path / "in", SIZES, seed=7)
    before = expected(written)

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if where == "spill":
        monkeypatch.setattr(Spilled, "write", full)
    else:
        monkeypatch.setattr("fpmdask.storage.write_at", full)
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(RecordsError, match="no space is left"):
        await balancer.sort_records(written.paths, tmp_path / "out")
    monkeypatch.undo()
    assert expected(written) == before
    found = await balancer.sort_records(written.paths, tmp_path / "out")
    assert found.checksum == written.checksum


@cluster(workers=2)
async def test_bad_input_is_refused_at_once(c, s, *workers, tmp_path, monkeypatch):
    balancer = await fpmdask.Balancer(c)
    written = write_records(tmp_path / "in", [100])
    good, out, x = written.paths[0], tmp_path / "out", da.ones(10)
    short = tmp_path / "short"
    short.write_bytes(bytes(250))
    full = tmp_path / "full"
    full.mkdir()
    (full / "something").write_text("of mine")
    cases = [
        (([], out), {}, "sources is empty"),
        ((3, out), {}, "found 3"),
        ((dask.delayed(1), out), {}, "sources is a Delayed.*; give a path"),
        ((x[x > 0], out), {}, "sources is a Array; give a path"),
        (({str(good): 1}, out), {}, "sources is a dict; give a path"),
        ((good, 3), {}, "found 3"),
        ((good, ""), {}, "give a path"),
        ((good, out), {"checksum": "yes"}, "give True or False"),
        ((good, out), {"distribution": [1, 2]}, "give a mapping"),
        ((good, out), {"distribution": {"0": -1}}, "whole number of records"),
        ((good, out), {"distribution": {"0": float("inf")}}, "whole number of records"),
        ((tmp_path / "nothing", out), {}, "there is no file .*nothing.*no worker finds it"),
        ((tmp_path / "nothing*", out), {}, "no file matches .*nothing"),
        ((tmp_path, out), {}, "is a directory"),
        ((short, out), {}, "has 250 bytes"),
        (([good, tmp_path / "in" / "*"], out), {}, "named twice"),
        ((good, full), {}, "is not empty: something"),
        ((good, short), {}, "is a file; give a folder"),
        (("nosuch://x", out), {}, "cannot be opened"),
        ((good, tmp_path / "short" / "below"), {}, "cannot be made: .*short is a file"),
    ]
    for arguments, options, message in cases:
        with pytest.raises(RecordsError, match=message):
            await balancer.sort_records(*arguments, **options)
        assert not out.exists(), message
    assert sorted(os.listdir(full)) == ["something"]
    monkeypatch.setattr(Folder, "free_nbytes", lambda self: 5000.0)
    with pytest.raises(RecordsError, match=r"has room for 4\.88 kiB, the sorted records need"):
        await balancer.sort_records(good, out)
    monkeypatch.setattr(state, "memory_of", lambda *worker: state.Memory(1e6, 0.0))
    monkeypatch.setattr(Folder, "free_nbytes", lambda self: 1e9)
    with pytest.raises(RecordsError, match="1 MB of memory to work with; 4 MB are needed"):
        await balancer.sort_records(good, out)


@cluster(workers=2, small=True)
async def test_a_file_that_changes_in_between_is_noticed(c, s, *workers, tmp_path, monkeypatch):
    written = write_records(tmp_path / "in", [5000], seed=8)
    original = share.read

    def shrinks(file, first, records):
        os.truncate(file.path, 100 * 100)
        original(file, first, records)

    monkeypatch.setattr(share, "read", shrinks)
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(RecordsError, match="since it was found: it has 10000 bytes now"):
        await balancer.sort_records(written.paths, tmp_path / "out")
    monkeypatch.undo()
    # other files than those that the target was begun with
    with pytest.raises(RecordsError, match="another sort, of other files or of these before"):
        await balancer.sort_records(written.paths, tmp_path / "out")
    os.unlink(written.paths[0])
    with pytest.raises(RecordsError, match="there is no file"):
        await balancer.sort_records(written.paths, tmp_path / "out")


@cluster(workers=2, small=True)
async def test_a_file_that_vanishes_on_the_way_is_named(c, s, *workers, tmp_path, monkeypatch):
    written = write_records(tmp_path / "in", [5000, 300], seed=8)
    original = share.read

    def vanishes(file, first, records):
        Path(written.paths[1]).unlink(missing_ok=True)
        original(file, first, records)

    monkeypatch.setattr(share, "read", vanishes)
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(RecordsError, match=f"{written.paths[1]} cannot be read: No such file"):
        await balancer.sort_records(written.paths, tmp_path / "out")


@cluster(workers=2)
async def test_a_target_that_is_not_shared_is_refused(c, s, *workers, tmp_path, monkeypatch):
    written = write_records(tmp_path / "in", [5000], seed=8)
    original = Folder.read_json

    def other(self, name):
        if str(get_worker().name) == "1":
            return None
        return original(self, name)

    monkeypatch.setattr(Folder, "read_json", other)
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(RecordsError, match="not the same folder for all workers"):
        await balancer.sort_records(written.paths, tmp_path / "out")
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "out")
    await balancer.sort_records(written.paths, tmp_path / "out")


@cluster(workers=2, small=True)
async def test_a_file_that_only_a_lost_worker_saw_is_named(c, s, *workers, tmp_path, monkeypatch):
    written = write_records(tmp_path / "in", [3000, 2000], seed=5)
    find, lost = survey.find, asyncio.Event()

    def find_own(sources):
        own = written.paths[int(get_worker().name)]
        return [file for file in find(sources) if file.path == own]

    def progress(event):
        if event["event"] == "step" and event["step"] == "count":
            lost.set()

    monkeypatch.setattr(survey, "find", find_own)
    balancer = await fpmdask.Balancer(c, progress=progress)
    running = asyncio.ensure_future(balancer.sort_records(written.paths, tmp_path / "out"))
    await lost.wait()
    await workers[1].close(timeout=1)
    with pytest.raises(RecordsError, match=f"{written.paths[1]} was only on workers that are gone"):
        await asyncio.wait_for(running, 30)


@cluster(workers=1, small=True)
async def test_a_worker_of_two_slots_reads_two_runs_at_once(c, s, worker, tmp_path, monkeypatch):
    written = write_records(tmp_path / "in", SIZES, seed=4)
    both, original = threading.Barrier(2), share.read

    def read(*args):
        if not both.broken:  # one alone waits in vain, and breaks it
            with contextlib.suppress(threading.BrokenBarrierError):
                met.append(both.wait(3))
        original(*args)

    met = []
    monkeypatch.setattr(share, "read", read)
    with dask.config.set({"fpmdask.slots": 2}):
        balancer = await fpmdask.Balancer(c)
        found = await balancer.sort_records(written.paths, tmp_path / "out")
    assert met
    assert found.checksum == written.checksum
    assert found_in(tmp_path / "out") == expected(written)


@cluster(workers=1)
async def test_a_lost_worker_with_the_only_view_of_a_file_is_said(c, s, worker, tmp_path):
    written = write_records(tmp_path / "in", [5000], seed=8)
    closing = []

    def close_it(event):
        if event["event"] == "step" and event["step"] == "sort" and not closing:
            closing.append(asyncio.ensure_future(worker.close()))

    balancer = await fpmdask.Balancer(c, progress=close_it)
    with pytest.raises(CoordinatorError, match="given up"):
        await balancer.sort_records(written.paths, tmp_path / "out")
    await closing[0]


def test_a_manifest_says_all_that_a_reader_needs(tmp_path):
    @cluster(workers=2)
    async def sort(c, s, *workers):
        balancer = await fpmdask.Balancer(c)
        await balancer.sort_records(written.paths, tmp_path / "out")

    written = write_records(tmp_path / "in", [5000], seed=9)
    sort()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["records"] == 5000
    assert int(manifest["checksum"], 16) == written.checksum
    assert manifest["sources"] == list(written.paths)
    assert sum(int(part["checksum"], 16) for part in manifest["parts"]) == written.checksum
    for before, after in zip(manifest["parts"], manifest["parts"][1:], strict=False):
        assert before["last"] <= after["first"]
