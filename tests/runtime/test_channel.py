"""Channels between workers: what is sent is what is received, where it is wanted."""

import asyncio
import fcntl
import gc
import re
import socket
import struct
import termios
import threading
import time
import weakref

import numpy as np
import pytest
from distributed import Security

from fpmdask.runtime.validation import MalformedError
from fpmdask.runtime.worker.channel import (
    VECTOR,
    Answer,
    Channel,
    Channels,
    Scattered,
    _receive_message,
)
from fpmdask.tuning import DEFAULT, RuntimeTuning

CHUNK = np.arange(5000.0 * 6).reshape(5000, 6)
IMPATIENT = RuntimeTuning(silent_peer_seconds=3)


def cut(run, wanted):
    """Serve pieces of CHUNK; the key of each is its dtype."""
    if run != "run":
        return {"missing": [(key, "has ended the run") for key, *_ in wanted]}, []
    pieces = [
        CHUNK[r0:r1, c0:c1].astype(kind, copy=False) for kind, ((r0, r1), (c0, c1)), *_ in wanted
    ]
    return {"dtypes": [piece.dtype.str for piece in pieces]}, pieces


def ask(channel, run, wanted):
    """Ask for pieces (row0, row1, column0, column1, dtype)."""
    boxes = [(kind, ((r0, r1), (c0, c1)), 0, None) for r0, r1, c0, c1, kind in wanted]
    channel.ask({"run": run, "reader": "tcp://reader", "wanted": boxes})


def serve(cutter):
    return lambda request, alive: Answer(*cutter(request["run"], request["wanted"]))


def contexts(encrypted):
    if not encrypted:
        return None, None
    security = Security.temporary()
    listen = security.get_listen_args("worker")["ssl_context"]
    return listen, security.get_connection_args("worker")["ssl_context"]


def with_channel(
    use,
    encrypted=False,
    cutter=cut,
    tell=lambda channels: None,
    host="127.0.0.1",
    tuning=DEFAULT.runtime,
):
    """Return what ``use`` returns for a channel, called in a thread while the owner serves.

    ``tell`` is told the owner's end before.
    """
    listen, connect = contexts(encrypted)

    async def main():
        channels = Channels(host, serve(cutter), listen, tuning)
        tell(channels)
        try:
            channel = await asyncio.to_thread(Channel, channels.address, connect, tuning)
            try:
                return await asyncio.to_thread(use, channel)
            finally:
                channel.close()
        finally:
            await channels.close()
            assert not [t for t in threading.enumerate() if t.name == "fpmdask-channel"]

    return asyncio.run(main())


@pytest.mark.parametrize("encrypted", [False, True])
def test_pieces_land_in_strided_memory_of_any_dtype(encrypted):
    wanted = [
        (0, 5000, 0, 6, "f8"),  # contiguous
        (3, 2 * VECTOR + 50, 2, 5, "f8"),  # more rows than one system call takes
        (7, 8, 0, 1, "c16"),
        (0, 5000, 1, 2, ">f4"),
        (9, 9, 0, 6, "f8"),  # nothing
        (10, 20, 0, 6, "bool"),
    ]

    def use(channel):
        ask(channel, "run", wanted)
        dtypes = channel.answer()["dtypes"]
        found = []
        for (r0, r1, c0, c1, _), dtype in zip(wanted, dtypes, strict=True):
            panel = np.zeros((r1 - r0 + 2, c1 - c0 + 3), dtype)
            target = panel[1:-1, 1:-2]
            channel.receive(target)
            assert not panel[[0, -1]].any()
            assert not panel[:, [0, -2, -1]].any()
            found.append(target)
        return found

    for (r0, r1, c0, c1, kind), piece in zip(wanted, with_channel(use, encrypted), strict=True):
        np.testing.assert_array_equal(piece, CHUNK[r0:r1, c0:c1].astype(kind))


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_scattered_row_arrives_as_one(encrypted):
    parts = [CHUNK[row] for row in range(VECTOR + 50)] + [CHUNK[0, :0], CHUNK[7, :1]]
    row = Scattered([memoryview(part).cast("B") for part in parts], CHUNK.dtype)

    def use(channel):
        ask(channel, "run", [])
        channel.answer()
        target = np.zeros((1, row.nbytes // 8))
        channel.receive(target)
        return target

    found = with_channel(use, encrypted, lambda run, wanted: ({"dtypes": ["<f8"]}, [row]))
    np.testing.assert_array_equal(found[0], np.asarray(row))
    np.testing.assert_array_equal(found[0], np.concatenate(parts))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_channels_of_ipv6_addresses():
    def use(channel):
        ask(channel, "run", [(0, 2, 0, 6, "f8")])
        return channel.answer()["dtypes"]

    assert with_channel(use, host="::1") == ("<f8",)


def test_several_requests_are_answered_in_order():
    def use(channel):
        for row in range(3):
            ask(channel, "run", [(row, row + 1, 0, 6, "f8")])
        rows = []
        for _ in range(3):
            channel.answer()
            rows.append(np.empty((1, 6)))
            channel.receive(rows[-1])
        return np.concatenate(rows)

    np.testing.assert_array_equal(with_channel(use), CHUNK[:3])


def test_an_answer_may_be_that_there_is_nothing():
    def use(channel):
        ask(channel, "another run", [(0, 1, 0, 1, "f8")])
        return channel.answer()

    assert with_channel(use) == {"missing": (("f8", "has ended the run"),)}


def test_an_owner_that_fails_is_an_error_at_once():
    def broken(run, wanted):
        raise OSError("no memory")

    owner = []

    def use(channel):
        ask(channel, "run", [])
        with pytest.raises(OSError, match="could not serve the request: OSError: no memory"):
            channel.answer()
        with pytest.raises(OSError, match="closed"):  # and serves nothing more
            channel.answer()
        nobody_is_given_way_to(owner[0])  # nothing is served any more

    with_channel(use, cutter=broken, tell=owner.append)


def test_an_owner_that_fails_says_why_and_logs_run_and_peer(caplog):
    def broken(run, wanted):
        raise LookupError(f"no chunk {wanted[0][0]}")

    def use(channel):
        ask(channel, "run-7", [(0, 1, 0, 1, "f8")])
        with pytest.raises(OSError, match=r"could not serve the request: LookupError: no chunk"):
            channel.answer()

    with caplog.at_level("INFO", logger="fpmdask"):
        with_channel(use, cutter=broken)
    (record,) = caplog.records
    assert record.getMessage().startswith("run run-7: serving ('127.0.0.1', ")
    assert "no chunk" in caplog.text


def test_a_channel_that_waits_can_be_shut_from_another_thread():
    asked, done = threading.Event(), threading.Event()

    def silent(run, wanted):
        asked.set()
        done.wait(20)
        return {"dtypes": []}, []

    def use(channel):
        threading.Timer(0, lambda: (asked.wait(20), channel.shut())).start()
        ask(channel, "run", [])
        try:
            with pytest.raises(OSError, match="closed"):
                channel.answer()
        finally:
            done.set()

    with_channel(use, cutter=silent)


def test_nonsense_ends_the_connection_and_not_the_owner():
    def use(channel):
        channel._socket.sendall(b"\xff" * 64)
        with pytest.raises(OSError, match=r"closed|reset"):
            channel.answer()

    with_channel(use)


MALFORMED = {
    "a request for pieces lacks reader, wanted": {"run": "run"},
    "a request for pieces has no part rows; parts are run, reader, wanted": {"rows": 3},
    "a request for pieces's wanted[1][1][0][1] is a str; it must be int": {
        "run": "run",
        "reader": "",
        "wanted": [("f8", ((0, 1), (0, 1)), 0, None), ("f8", ((0, "1"), (0, 1)), 0, None)],
    },
    "found tuple for a message": [1],
}


@pytest.mark.parametrize("encrypted", [False, True])
def test_malformed_requests_are_refused_and_the_next_one_is_served(encrypted, caplog):
    def use(channel):
        for says, request in MALFORMED.items():
            channel.ask(request)
            with pytest.raises(MalformedError, match=re.escape(says)):
                channel.answer()
        ask(channel, "run", [(0, 2, 0, 6, "f8")])
        return channel.answer()["dtypes"]

    assert with_channel(use, encrypted) == ("<f8",)
    assert len(caplog.records) == len(MALFORMED)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"dtypes": ["<f8", 3]}, "the header of pieces's dtypes[1] is an int; it must be str"),
        ({"pieces": 3}, "the header of pieces has the parts pieces; allowed are dtypes | waiting"),
    ],
)
def test_a_malformed_header_is_an_error_of_who_has_asked(header, says):
    def use(channel):
        ask(channel, "run", [])
        with pytest.raises(MalformedError, match=re.escape(says)):
            channel.answer()

    with_channel(use, cutter=lambda run, wanted: (header, []))


def giving_way(channels):
    thread = threading.Thread(target=channels.give_way, args=(60.0,), daemon=True)
    thread.start()
    return thread


def nobody_is_given_way_to(channels):
    thread = giving_way(channels)
    thread.join(30)
    assert not thread.is_alive()


def test_who_gives_way_lets_a_request_be_served_first():
    owner, begun, served = [], threading.Event(), threading.Event()

    def slow_cut(run, wanted):
        begun.set()
        assert served.wait(30)
        return cut(run, wanted)

    def use(channel):
        nobody_is_given_way_to(owner[0])  # nothing is asked for
        ask(channel, "run", [(0, 2, 0, 6, "f8")])
        assert begun.wait(30)
        owner[0].give_way(0.01)  # and no longer
        thread = giving_way(owner[0])
        thread.join(0.2)
        assert thread.is_alive()
        served.set()
        assert "dtypes" in channel.answer()
        target = np.empty((2, 6))
        channel.receive(target)
        thread.join(30)
        assert not thread.is_alive()
        return target

    target = with_channel(use, cutter=slow_cut, tell=owner.append)
    np.testing.assert_array_equal(target, CHUNK[:2])


def test_nobody_gives_way_to_what_waits_itself():
    owner, begun, there = [], threading.Event(), threading.Event()

    def waiting_cut(run, wanted):
        with owner[0].waiting():
            begun.set()
            assert there.wait(30)
        return cut(run, wanted)

    def use(channel):
        ask(channel, "run", [(0, 2, 0, 6, "f8")])
        assert begun.wait(30)
        nobody_is_given_way_to(owner[0])
        there.set()
        return channel.answer()

    assert with_channel(use, cutter=waiting_cut, tell=owner.append)["dtypes"] == ("<f8",)


LARGE = np.arange(float(1 << 20)).reshape(2 << 8, 4 << 9)


def cut_large(run, wanted):
    return {"dtypes": [LARGE.dtype.str]}, [LARGE]


def with_small_buffers(owner):
    """Return what makes the owner's sockets hold next to nothing, and notes who it is."""

    def tell(channels):
        channels._listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 43520)
        owner.append(channels)

    return tell


@pytest.mark.parametrize("encrypted", [False, True])
def test_nobody_gives_way_to_who_takes_nothing(encrypted):
    """More is sent than the sockets hold, and nothing of it is read for a while."""
    owner = []

    def use(channel):
        ask(channel, "run", [])
        assert channel.answer()["dtypes"] == (LARGE.dtype.str,)
        nobody_is_given_way_to(owner[0])
        target = np.empty_like(LARGE)
        channel.receive(target)
        return target

    target = with_channel(use, encrypted, cut_large, with_small_buffers(owner))
    np.testing.assert_array_equal(target, LARGE)


@pytest.mark.parametrize("encrypted", [False, True])
def test_nobody_gives_way_to_who_is_gone(encrypted):
    owner = []

    def use(channel):
        ask(channel, "run", [])
        channel.answer()
        channel.close()
        nobody_is_given_way_to(owner[0])

    with_channel(use, encrypted, cut_large, with_small_buffers(owner))


@pytest.mark.parametrize("encrypted", [False, True])
def test_who_takes_nothing_for_long_is_let_go(encrypted):
    owner = []

    def use(channel):
        ask(channel, "run", [])
        serving = list(owner[0]._connections)
        channel.answer()
        serving[0].join(30)
        assert not serving[0].is_alive()

    with_channel(use, encrypted, cut_large, with_small_buffers(owner), tuning=IMPATIENT)


def queued(connection):
    """Return how many bytes have come that nobody has received."""
    return struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4)))[0]


@pytest.mark.parametrize("encrypted", [False, True])
def test_what_is_queued_when_a_channel_is_shut_is_right_or_an_error(encrypted):
    """Encrypted bytes are never taken for elements."""
    piece = LARGE[:2]

    def use(channel):
        ask(channel, "run", [])
        channel.answer()
        while queued(channel._socket) < piece.nbytes:
            time.sleep(0.01)
        channel.shut()
        target = np.zeros_like(piece)
        try:
            channel.receive(target)
        except OSError:
            return None
        return target

    found = with_channel(use, encrypted, lambda *asked: ({"dtypes": [piece.dtype.str]}, [piece]))
    if found is not None:
        np.testing.assert_array_equal(found, piece)


@pytest.mark.parametrize("encrypted", [False, True])
def test_who_says_nothing_for_long_is_an_error(encrypted):
    done = threading.Event()

    def silent(run, wanted):
        done.wait(30)
        return {"dtypes": []}, []

    def use(channel):
        ask(channel, "run", [])
        try:
            with pytest.raises(OSError, match=r"timed out|temporarily unavailable"):
                channel.answer()
        finally:
            done.set()

    with_channel(use, encrypted, silent, tuning=IMPATIENT)


def test_an_owner_that_shakes_no_hands_is_an_error():
    _, connect = contexts(True)
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        pytest.raises(OSError, match="timed out"),
    ):
        Channel(mute.getsockname(), connect, RuntimeTuning(handshake_seconds=1.0))


@pytest.mark.parametrize("patience", [1, 600])
def test_who_connects_and_shakes_no_hands_holds_nobody(patience):
    """Its thread ends by itself, or when the owner closes."""
    listen, _ = contexts(True)
    tuning = RuntimeTuning(handshake_seconds=patience)

    async def main():
        channels = Channels("127.0.0.1", cut, listen, tuning)
        with socket.create_connection(channels.address):
            while not channels._connections:
                await asyncio.sleep(0.01)
            (serving,) = channels._connections
            if patience > 1:
                closing = asyncio.create_task(channels.close())
            await asyncio.to_thread(serving.join, 30)
            alive = serving.is_alive()
        if patience == 1:
            closing = asyncio.create_task(channels.close())
        await closing
        assert not alive

    asyncio.run(main())


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.filterwarnings("error")
def test_who_is_gone_before_it_is_served_leaves_no_socket(encrypted):
    listen, _ = contexts(encrypted)

    async def main():
        channels = Channels("127.0.0.1", cut, listen)
        gone = socket.create_connection(channels.address)
        reset = struct.pack("ii", 1, 0)
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        gone.close()  # before the loop accepts it
        await asyncio.sleep(0.05)
        assert gone.fileno() == -1
        await channels.close()

    asyncio.run(main())
    gc.collect()  # a socket that nobody closed is told of, and so an error


def test_what_was_sent_is_not_kept():
    kept = []

    def once(run, wanted):
        piece = np.ones((2, 3))
        kept.append(weakref.ref(piece))
        return {"dtypes": ["<f8"]}, iter([piece])

    def use(channel):
        ask(channel, "run", [])
        channel.answer()
        channel.receive(np.empty((2, 3)))
        for _ in range(500):  # the owner waits for the next request soon
            gc.collect()
            if kept[0]() is None:
                break
            time.sleep(0.02)
        return kept[0]()

    assert with_channel(use, cutter=once) is None


@pytest.mark.parametrize("packed", [b"\xc1", b"\x81\x80\x01"])
def test_a_message_that_cannot_be_read_is_an_error(packed):
    here, there = socket.socketpair()
    with here, there:
        here.sendall(struct.pack("!I", len(packed)) + packed)
        with pytest.raises(MalformedError, match="not msgpack"):
            _receive_message(there)
