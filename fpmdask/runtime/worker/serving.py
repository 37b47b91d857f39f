"""What a worker sends to others: pieces of Dask's chunks, and of what its runs offer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from dask.utils import typename
from distributed import Worker
from distributed.protocol import to_serialize
from distributed.utils import offload

from fpmdask.errors import PartitionError
from fpmdask.runtime.protocol import Wanted
from fpmdask.runtime.regions import Box, is_within, view
from fpmdask.runtime.worker.channel import ALIVE_SECONDS, Answer, Channels
from fpmdask.runtime.worker.offers import Offers, Refused

# Pieces of more than this many bytes are packed for Dask's messages in a thread.
OFFLOAD_NBYTES = 1 << 20
# A message of Dask's is answered within so long, if only by "ask again".
MESSAGE_SECONDS = 10.0


class _NotServed(Exception):
    """There is an answer without pieces: `header`."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        super().__init__(str(header))
        self.header = dict(header)


class Serving:
    """Serves the requests of other workers.

    The header of an answer has ``dtypes``, or ``missing``, (key, why) of what is not there, or
    ``unusable``, why a chunk is not what its array says.

    Parameters
    ----------
    worker
        Holds chunks.
    offers_of
        Run → what it offers here; None where it does not go on here.
    channels_of
        What it is asked through, if it listens.
    """

    def __init__(
        self,
        worker: Worker,
        offers_of: Callable[[str], Offers | None],
        channels_of: Callable[[], Channels | None],
    ) -> None:
        self._worker, self._offers_of, self._channels_of = worker, offers_of, channels_of

    def by_channel(self, request: Mapping[str, Any], alive: Callable[[], None]) -> Answer:
        """Answer a request; in a thread, which waits for what is not offered yet."""
        wanted: Sequence[Wanted] = request["wanted"]
        try:
            offers = self._offers_of(request["run"])
            if offers is None:
                raise _NotServed(_missing([key for key, *_ in wanted], "has ended the run"))
            offered = {}
            for n, one in enumerate(wanted):
                if one[3] is None:
                    while (piece := self._waited(offers, one)) is None:
                        alive()
                    offered[n] = piece
            if len(offered) < len(wanted):
                offered |= self._on_loop(self._chunks(wanted))
        except _NotServed as refusal:
            return Answer(refusal.header)
        pieces = [offered[n] for n in range(len(wanted))]

        def sent(number: int) -> None:
            key, box, version, shape = wanted[number]
            if shape is None:
                offers.was_sent(key, box, version, request["reader"])

        return Answer({"dtypes": [piece.dtype.str for piece in pieces]}, pieces, sent)

    def _waited(self, offers: Offers, wanted: Wanted) -> Any:
        """Return a piece of what is offered, None where there is none yet after a while."""
        if (piece := _offered(offers, wanted, 0.0)) is not None:
            return piece
        channels = self._channels_of()
        with nullcontext() if channels is None else channels.waiting():
            return _offered(offers, wanted, ALIVE_SECONDS)

    async def by_message(
        self, run: str, reader: str, wanted: Sequence[Wanted], wait: bool
    ) -> dict[str, Any]:
        """Answer a message of Dask's: with ``pieces``, a header as above, or ``waiting``."""
        give_up = time.monotonic() + MESSAGE_SECONDS * wait
        try:
            found, offers = {}, self._offers_of(run)
            for n, one in enumerate(wanted):
                if one[3] is None:
                    if offers is None:
                        raise _NotServed(_missing([one[0]], "has ended the run"))
                    if (piece := _offered(offers, one, 0.0)) is None:
                        left = max(0.0, give_up - time.monotonic())
                        piece = await asyncio.to_thread(_offered, offers, one, left)
                    if piece is None:
                        return {"waiting": True}
                    found[n] = piece
            if len(found) < len(wanted):
                found |= await self._chunks(wanted)
        except _NotServed as refusal:
            return refusal.header

        def packed() -> list[np.ndarray]:
            # what is offered may change once it counts as read, before the message is written
            return [
                np.array(found[n]) if one[3] is None else np.ascontiguousarray(found[n])
                for n, one in enumerate(wanted)
            ]

        large = sum(piece.nbytes for piece in found.values()) > OFFLOAD_NBYTES
        arrays = await offload(packed) if large else packed()
        for key, box, version, shape in wanted:
            if shape is None and offers is not None:
                offers.was_sent(key, box, version, reader)
        return {"pieces": [to_serialize(array) for array in arrays]}

    async def _chunks(self, wanted: Sequence[Wanted]) -> dict[int, np.ndarray]:
        """Return views of pieces of chunks, by their place in a request; on the event loop."""
        data: Mapping[Any, Any] = self._worker.data
        chunks = [(n, *one) for n, one in enumerate(wanted) if one[3] is not None]
        if missing := [key for _, key, *_ in chunks if key not in data]:
            raise _NotServed(_missing(missing, "has not got it"))
        try:
            return {
                n: piece_of(key, data[key], box, shape or ()) for n, key, box, _, shape in chunks
            }
        except PartitionError as error:
            raise _NotServed({"unusable": str(error)}) from error

    def _on_loop(self, work: Any) -> Any:
        loop: Any = self._worker.loop
        return asyncio.run_coroutine_threadsafe(work, loop.asyncio_loop).result()


def _offered(offers: Offers, wanted: Wanted, seconds: float) -> Any:
    key, box, version, _ = wanted
    try:
        return offers.wait_for(key, box, version, seconds)
    except Refused as refused:
        raise _NotServed(_missing([key], str(refused))) from refused


def _missing(keys: Sequence[Any], why: str) -> dict[str, Any]:
    return {"missing": [(key, why) for key in keys]}


def piece_of(key: Any, chunk: Any, box: Box, shape: Sequence[int]) -> np.ndarray:
    """Return a piece of a chunk, a view.

    Raises
    ------
    PartitionError
        If the chunk is not the NumPy array that its dask array describes.
    """
    checked = checked_chunk(key, chunk, shape)
    if not is_within(box, checked.shape):
        raise PartitionError(f"chunk {key} of the shape {checked.shape} has no {box}")
    return view(checked, box)


def checked_chunk(key: Any, chunk: Any, shape: Sequence[int]) -> np.ndarray:
    """Return ``chunk``, refusing what is not the NumPy array that its dask array describes.

    Raises
    ------
    PartitionError
        If it is something else, or of another shape.
    """
    if not isinstance(chunk, np.ndarray) or isinstance(chunk, np.ma.MaskedArray):
        raise PartitionError(
            f"chunk {key} is a {typename(type(chunk))}; make it a NumPy array (map_blocks with "
            "numpy.asarray, toarray or filled)"
        )
    if chunk.dtype.hasobject:
        raise PartitionError(
            f"chunk {key} has dtype {chunk.dtype}, Python objects; convert it with astype"
        )
    if chunk.shape != tuple(shape):
        raise PartitionError(
            f"chunk {key} has the shape {chunk.shape}, its dask array says {tuple(shape)}; give "
            "map_blocks the right chunks"
        )
    return chunk
