"""`check_exchange`: what holds for an exchange between workers, whatever carries the bytes."""

import asyncio
import threading

import numpy as np
import pytest

from fpmdask.errors import PartitionError, RunCancelledError
from fpmdask.runtime.regions import whole
from fpmdask.runtime.worker.channel import Scattered
from fpmdask.runtime.worker.fetch import FetchFailed, Want

VALUES = np.arange(6.0 * 5 * 4).reshape(6, 5, 4)


class Read:
    """A source that is read when it is sent."""

    shape, dtype = VALUES.shape, VALUES.dtype

    def read(self, box):
        return VALUES[tuple(slice(*axis) for axis in box)]


class Pieces:
    """A source whose elements lie in several places."""

    shape, dtype = (7,), np.dtype("i4")
    parts = (np.arange(3, dtype="i4"), np.arange(3, 7, dtype="i4"))

    def read(self, box):
        assert box == ((0, 7),)
        return Scattered([memoryview(part).cast("B") for part in self.parts], self.dtype)


async def check_exchange(one, other, chunks):
    """Check the exchange of two workers.

    Parameters
    ----------
    one, other
        Exchanges of one run on two workers, which know each other; `.address` is the worker's.
    chunks
        (key, array) of Dask chunks that the other worker holds: one-, two- and three-dimensional.
    """
    checks = [check_arrays, check_places, check_chunks, check_versions, check_arrival, check_ends]
    for check in checks:
        await asyncio.wait_for(asyncio.to_thread(check, one, other, chunks), 60)


def check_arrays(one, other, chunks):
    """Arrays of any dtype and layout, and sources that are read, arrive as they are."""
    arrays = {
        "c": VALUES,
        "f": np.asfortranarray(VALUES),
        "strided": VALUES[::2, ::-1, 1:3],
        "none": VALUES[:0],
        "point": VALUES[:1, :1, :1],
        "dates": VALUES.astype("M8[s]"),
        "big-endian": VALUES.astype(">f4"),
        "read": Read(),
        "pieces": Pieces(),
    }
    for key, source in arrays.items():
        other.offer(("arrays", key), source)
    wants = [
        Want(
            ("arrays", key), whole(source.shape), np.empty(source.shape, source.dtype), [at(other)]
        )
        for key, source in arrays.items()
    ]
    arrived = []
    fetch = one.fetch(wants, arrived.append)
    fetch.wait()
    assert fetch.done
    assert arrived == wants  # those of one holder come in their order
    assert fetch.nbytes == sum(want.out.nbytes for want in wants)
    for want, source in zip(wants, arrays.values(), strict=True):
        expected = np.concatenate(source.parts) if want.key[1] == "pieces" else source
        np.testing.assert_array_equal(want.out, VALUES if want.key[1] == "read" else expected)
    for key in arrays:
        other.retire(("arrays", key))


def check_places(one, other, chunks):
    """Boxes land in strided places, nothing beside them changes, safe casts are made."""
    other.offer("places", VALUES)
    box = ((1, 5), (0, 5), (2, 4))
    for dtype in ("f8", "c16"):
        for target in (np.zeros((9, 8, 7), dtype), np.zeros((9, 8, 7), dtype, order="F")):
            out = target[2:6, 1:6, 3:5]
            one.fetch([Want("places", box, out, [at(other)])]).wait()
            np.testing.assert_array_equal(out, VALUES[1:5, :, 2:4])
            out[...] = 0
            assert not target.any()
    every_other = np.zeros(12)[::2]
    one.fetch([Want("places", ((0, 6), (2, 3), (1, 2)), every_other.reshape(6, 1, 1), [at(other)])])
    with pytest.raises(PartitionError, match="a chunk has dtype float64, its dask array says"):
        one.fetch([Want("places", box, np.zeros((4, 5, 2), "f4"), [at(other)])]).wait()
    with pytest.raises(ValueError, match="does not fit into a target"):
        one.fetch([Want("places", box, np.zeros(3), [at(other)])])
    one.fetch([Want("places", box, np.zeros((4, 5, 2)), [at(other)])]).wait()  # it still works
    here = np.zeros((4, 5, 2))
    other.fetch([Want("places", box, here, [at(other)])]).wait()  # from the worker itself
    np.testing.assert_array_equal(here, VALUES[1:5, :, 2:4])
    outside = ((0, 7), (0, 5), (0, 4))
    with pytest.raises(FetchFailed, match="offers the shape"):
        one.fetch([Want("places", outside, np.zeros((7, 5, 4)), [at(other)])]).wait()
    other.retire("places")


def check_chunks(one, other, chunks):
    """Dask's chunks are offers, too; where a holder has not got one, the next one is asked."""
    for key, array in chunks:
        box = tuple((length // 3, length) for length in array.shape)
        out = np.empty([stop - start for start, stop in box], array.dtype)
        for holders in ([at(other)], [at(one), at(other)]):
            out[...] = 0
            one.fetch([Want(key, box, out, holders, shape=array.shape)]).wait()
            np.testing.assert_array_equal(out, array[tuple(slice(*axis) for axis in box)])
        with pytest.raises(PartitionError, match="its dask array says"):
            one.fetch([Want(key, box, out, [at(other)], shape=(*array.shape, 1))]).wait()
        assert one.here([(key, box, array.shape)]) == {}
        np.testing.assert_array_equal(other.here([(key, box, array.shape)])[0], out)
    missing = Want(("not", 0), ((0, 1),), np.zeros(1), [at(other)], shape=(1,))
    with pytest.raises(FetchFailed, match="has not got it") as caught:
        one.fetch([missing]).wait()
    assert caught.value.keys == [("not", 0)]
    assert caught.value.peers == [at(other)]
    with pytest.raises(FetchFailed, match="nobody holds it"):
        one.fetch([Want(("not", 0), ((0, 1),), np.zeros(1), [], shape=(1,))])


def check_versions(one, other, chunks):
    """A buffer is overwritten once it was read; an older version is refused, a newer one waits."""
    buffer = np.zeros(1000)
    got = []

    def read():
        for version in range(5):
            out = np.empty(1000)
            halves = [
                Want("versions", ((0, 400),), out[:400], [at(other)], version),
                Want("versions", ((400, 1000),), out[400:], [at(other)], version),
            ]
            for half in halves:
                one.fetch([half]).wait()
            got.append(out)

    reading = threading.Thread(target=read)
    reading.start()
    for version in range(5):
        buffer[...] = version
        other.offer("versions", buffer, version, readers=[at(one)]).wait_read()
    reading.join(30)
    for version, out in enumerate(got):
        np.testing.assert_array_equal(out, version)
    assert len(got) == 5
    with pytest.raises(FetchFailed, match="offers version 4, not 3"):
        one.fetch([Want("versions", ((0, 1),), np.zeros(1), [at(other)], 3)]).wait()
    with pytest.raises(ValueError, match="version 3 comes after version 4"):
        other.offer("versions", buffer, 3)
    waiting = one.fetch([Want("versions", ((0, 1),), np.zeros(1), [at(other)], 5)])
    other.retire("versions")
    assert not waiting.done
    other.offer("versions", buffer, 5)
    waiting.wait()
    other.retire("versions")
    with pytest.raises(FetchFailed, match="has retired it"):
        one.fetch([Want("versions", ((0, 1),), np.zeros(1), [at(other)], 5)]).wait()


def check_arrival(one, other, chunks):
    """What is offered in boxes is given as soon as all of what is wanted is there."""
    source = VALUES[0]
    outs = {rows: np.zeros((2, 4)) for rows in ((0, 2), (2, 4))}
    fetches = {
        rows: one.fetch([Want("arrival", (rows, (0, 4)), out, [at(other)])])
        for rows, out in outs.items()
    }
    other.offer("arrival", source, box=((2, 4), (0, 3)))
    other.offer("arrival", source, box=((2, 4), (3, 4)))
    fetches[2, 4].wait()
    np.testing.assert_array_equal(outs[2, 4], source[2:4])
    assert not fetches[0, 2].done
    other.retire("arrival")
    with pytest.raises(FetchFailed, match="has retired it"):
        fetches[0, 2].wait()


def check_ends(one, other, chunks):
    """A fetch that is cancelled ends at once; others go on."""
    never = one.fetch([Want("never", ((0, 1),), np.zeros(1), [at(other)])])
    assert not never.done
    stopper = threading.Timer(0.2, never.stop)
    stopper.start()
    ended = never._done.wait(5)  # long before who is asked would answer
    assert ended
    with pytest.raises(RunCancelledError):
        never.wait()
    other.offer("ends", VALUES[0, 0])
    out = np.zeros(4)
    one.fetch([Want("ends", ((0, 4),), out, [at(other)])]).wait()
    np.testing.assert_array_equal(out, VALUES[0, 0])


def at(exchange):
    return exchange.address
