"""Pieces of arrays from worker to worker, straight into the memory that they are for.

A Dask message is put into new memory, from which it is copied: that costs a throttled worker more
than the network does. Here rows of a chunk go from the owner's memory to the socket and from the
socket to their place, without a copy and without the GIL::

    Channel.ask(request)     ──▶ request ──▶ Channels: serve(request, alive) -> Answer
    Channel.answer()         ◀── header  ◀── {"dtypes": […]} or why not
    Channel.receive(target)  ◀── rows    ◀── …, once per piece

Requests and headers are msgpack behind their length, as `fpmdask.runtime.protocol` declares them. A
malformed request is refused, and the next one of the connection served. While the owner waits for
what it is asked for it says so now and then. Connections use the worker's own TLS context where the
cluster has one; a request must name a run that the coordinator has prepared here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from fpmdask.runtime.protocol import PieceHeader, PieceRequest
from fpmdask.runtime.rpc import checker
from fpmdask.runtime.validation import MalformedError
from fpmdask.tuning import DEFAULT, RuntimeTuning

logger = logging.getLogger(__name__)

# An owner that waits for what it is asked for says so that often.
ALIVE_SECONDS = 10.0
CONNECT_SECONDS = 5.0
# Buffers of one system call (IOV_MAX is 1024).
VECTOR = 1000
# Requests are lists of keys; anything longer is not one. Memory is taken as their bytes come.
MOST_REQUEST_NBYTES = 64 << 20
STEP_NBYTES = 1 << 16
# Rows shorter than this are packed before they are sent, and unpacked behind the socket, where all
# of them are few bytes: a view of each costs more than copying it.
SHORT_ROW, PACKED_NBYTES = 512, 4 << 20
# Over TLS so much is given to a socket at a time.
TLS_NBYTES = 1 << 17
_LENGTH = struct.Struct("!I")
# Elements of the lists in a message that are looked at: one takes about a microsecond.
LOOKED_AT = 4
_check_request = checker(PieceRequest, "a request for pieces", LOOKED_AT)
_check_header = checker(PieceHeader, "the header of pieces", LOOKED_AT)


@dataclass(frozen=True)
class Scattered:
    """A one-dimensional array whose bytes lie in several places; NumPy puts it together."""

    parts: Sequence[memoryview]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Of the whole array."""
        return sum(part.nbytes for part in self.parts)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.frombuffer(b"".join(self.parts), self.dtype)


def _ignore(number: int) -> None:
    """Nobody wants to know which piece has been sent."""


@dataclass(frozen=True)
class Answer:
    """What is sent for a request: a header, and the pieces whose dtypes it tells.

    `pieces` are arrays, `Scattered`, or what NumPy makes an array when its turn comes; `sent` is
    called with the number of each once the memory that it was in may change.
    """

    header: Mapping[str, Any]
    pieces: Iterable[Any] = ()
    sent: Callable[[int], None] = _ignore


# (request, what tells the peer that it is waited) → answer; called in threads
Serve = Callable[[Mapping[str, Any], Callable[[], None]], Answer]


class Channel:
    """One connection to the `Channels` of another worker; for one thread at a time.

    Raises
    ------
    OSError
        From every method, when the peer is gone, silent or does not understand.
    """

    def __init__(
        self,
        address: tuple[str, int],
        context: ssl.SSLContext | None = None,
        tuning: RuntimeTuning = DEFAULT.runtime,
    ) -> None:
        connection = socket.create_connection(address, CONNECT_SECONDS)
        if context is not None:
            connection.settimeout(tuning.handshake_seconds)
            connection = context.wrap_socket(connection)
        try:
            self._socket = _prepared(connection, tuning.silent_peer_seconds)
        except OSError:
            connection.close()
            raise

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send a request, a `PieceRequest`."""
        self._socket.sendall(_packed(request))

    def answer(self) -> dict[str, Any]:
        """Return the header of the answer: ``dtypes`` of the pieces, or why there are none.

        Raises
        ------
        MalformedError
            If the peer refuses the request, or its answer is malformed.
        """
        while "waiting" in (header := _receive_message(self._socket)):
            pass
        _check_header(header)
        if "error" in header:
            raise OSError(f"the peer could not serve the request: {header['error']}")
        if "malformed" in header:
            raise MalformedError(header["malformed"])
        return header

    def receive(self, target: np.ndarray) -> None:
        """Fill ``target``, any writable array, with the next piece: in place, without a copy.

        But for short rows, which are packed.
        """
        _receive(self._socket, target)

    def shut(self) -> None:
        """Make the thread that waits for this channel return; from any thread."""
        _shut(self._socket)

    def close(self) -> None:
        """Close the connection."""
        self.shut()
        self._socket.close()


class Channels:
    """The owner's end: listens, and serves every connection in a thread of its own.

    Parameters
    ----------
    host
        Where to listen; any free port.
    serve
        (request, alive) → `Answer`; called in threads. One that waits for what it is asked for
        calls ``alive()`` every `ALIVE_SECONDS`.
    context
        For TLS.
    tuning
        How long peers are waited for.
    """

    def __init__(
        self,
        host: str,
        serve: Serve,
        context: ssl.SSLContext | None = None,
        tuning: RuntimeTuning = DEFAULT.runtime,
    ) -> None:
        self._serve_request, self._tuning = serve, tuning
        self._context = context
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, 0), family=family)
        self._listening.setblocking(False)
        self.address: tuple[str, int] = self._listening.getsockname()[:2]
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._closing = False
        self.cpu_seconds = 0.0  # spent on serving
        self._serving = 0  # threads that wait for no other machine
        self._none_serves = threading.Condition()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listening, self._accept)

    def give_way(self, seconds: float) -> None:
        """Return once no request is served that this machine could go on with, or so much later."""
        with self._none_serves:
            self._none_serves.wait_for(lambda: not self._serving, seconds)

    def waiting(self) -> AbstractContextManager[None]:
        """Say that this thread, which serves a request, waits for another machine."""
        return self._counted(-1)

    async def close(self) -> None:
        """Close all connections and wait for their threads."""
        self._loop.remove_reader(self._listening)
        self._listening.close()
        self._closing = True
        for connection in list(self._connections.values()):
            _shut(connection)
        for thread in list(self._connections):
            await asyncio.to_thread(thread.join)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it went away again
            plain, peer = self._listening.accept()
            thread = threading.Thread(
                target=self._serve, args=(plain, peer), name="fpmdask-channel", daemon=True
            )
            self._connections[thread] = plain
            thread.start()

    def _serve(self, plain: socket.socket, peer: tuple[Any, ...]) -> None:
        thread = threading.current_thread()
        request: Mapping[str, Any] = {}
        try:
            with self._connected(thread, plain) as connection:
                while not self._closing:
                    request = {}
                    try:
                        request = _receive_message(connection)
                        _check_request(request)
                    except MalformedError as refusal:
                        logger.error("run %s, %s: %s", request.get("run"), peer, refusal)
                        told = _packed({"malformed": str(refusal)})
                        self._send(connection, [memoryview(told)])
                    else:
                        self._answer(connection, request)
        except (
            OSError
        ) as error:  # its end, or a peer that is gone: a request that is cut off is news
            if request and not self._closing:
                logger.info("run %s: serving %s ended: %r", request.get("run"), peer, error)
        except Exception:
            logger.exception("run %s: serving %s failed", request.get("run"), peer)
        finally:
            self._connections.pop(thread, None)

    @contextlib.contextmanager
    def _connected(self, thread: threading.Thread, plain: socket.socket) -> Iterator[socket.socket]:
        """Shake hands; what the thread waits for is always a socket that `close` knows."""
        with plain:
            connection = plain
            if self._context is not None:
                plain.getpeername()  # who is gone is told here: `wrap_socket` left its socket open
                plain.settimeout(self._tuning.handshake_seconds)
                connection = self._context.wrap_socket(
                    plain, server_side=True, do_handshake_on_connect=False
                )
            with connection:
                self._connections[thread] = connection
                if isinstance(connection, ssl.SSLSocket) and not self._closing:
                    connection.do_handshake()
                # the next request may come late: only what is begun must go on
                yield _prepared(connection, None)

    def _answer(self, connection: socket.socket, request: Mapping[str, Any]) -> None:
        began = time.thread_time()
        try:
            with self._counted(1):
                try:
                    answer = self._serve_request(request, lambda: self._alive(connection))
                except Exception as error:
                    told = _packed({"error": f"{type(error).__name__}: {error}"})
                    self._send(connection, [memoryview(told)])
                    raise
                self._send(connection, [memoryview(_packed(answer.header))])
                for number, piece in enumerate(answer.pieces):
                    self._send(connection, _rows(_in_rows(piece)))
                    answer.sent(number)
        finally:
            with self._none_serves:
                self.cpu_seconds += time.thread_time() - began

    def _alive(self, connection: socket.socket) -> None:
        self._send(connection, [memoryview(_packed({"waiting": True}))])

    @contextlib.contextmanager
    def _counted(self, by: int) -> Iterator[None]:
        self._count(by)
        try:
            yield
        finally:
            self._count(-by)

    def _count(self, by: int) -> None:
        with self._none_serves:
            self._serving += by
            if not self._serving:
                self._none_serves.notify_all()

    def _send(self, connection: socket.socket, left: list[memoryview]) -> None:
        at = 0
        connection.setblocking(False)
        while at < len(left):
            try:
                if isinstance(connection, ssl.SSLSocket):
                    sent = connection.send(left[at][:TLS_NBYTES])
                else:
                    sent = connection.sendmsg(left[at : at + VECTOR])
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._await(connection, select.POLLOUT)
            except ssl.SSLWantReadError:  # new keys
                self._await(connection, select.POLLIN)
            else:
                at = _advance(left, at, sent)
        connection.setblocking(True)

    def _await(self, connection: socket.socket, event: int) -> None:
        poll = select.poll()
        poll.register(connection, event)
        with self.waiting():
            patience = self._tuning.silent_peer_seconds
            if not poll.poll(patience * 1000):
                raise TimeoutError(f"the peer takes nothing for {patience} s")


def _prepared(connection: socket.socket, patience: int | None) -> socket.socket:
    """Let a connection wait for what it sends and receives, for so many seconds at most."""
    connection.settimeout(None)
    if patience is not None:
        if isinstance(connection, ssl.SSLSocket):
            connection.settimeout(patience)  # it would ask the kernel again, for ever
        else:  # waiting in the kernel takes one system call
            limit = struct.pack("ll", patience, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # notices a machine that died
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _shut(connection: socket.socket) -> None:
    """End both directions, from any thread.

    ``SSLSocket.shutdown`` would also end the encryption: a thread that receives took the encrypted
    bytes that are queued for the rest of its piece.
    """
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _packed(message: Mapping[str, Any]) -> bytes:
    packed: bytes = msgpack.packb(message)
    return _LENGTH.pack(len(packed)) + packed


def _receive_message(connection: socket.socket) -> dict[str, Any]:
    length = bytearray(_LENGTH.size)
    _fill(connection, [memoryview(length)])
    (nbytes,) = _LENGTH.unpack(length)
    if nbytes > MOST_REQUEST_NBYTES:
        raise OSError(f"a message of {nbytes} bytes announced; at most {MOST_REQUEST_NBYTES}")
    packed = bytearray()
    while len(packed) < nbytes:
        part = bytearray(min(STEP_NBYTES, nbytes - len(packed)))
        _fill(connection, [memoryview(part)])
        packed += part
    try:
        message = msgpack.unpackb(packed, use_list=False, strict_map_key=False)
    except (ValueError, TypeError) as error:  # TypeError: keys without a hash
        raise MalformedError(f"found a message that is not msgpack: {error}") from error
    if not isinstance(message, dict):
        raise MalformedError(f"found {type(message).__name__} for a message")
    return message


def _in_rows(piece: Any) -> np.ndarray | Scattered:
    """Return a piece as an array whose rows are contiguous and not too short, unless scattered."""
    if isinstance(piece, Scattered):
        return piece
    if isinstance(piece, np.ndarray) and not _is_packed(piece):
        return piece
    return np.ascontiguousarray(piece)


def _is_packed(array: np.ndarray) -> bool:
    """Tell whether an array is copied into one block for the socket, or from one behind it."""
    if array.flags.c_contiguous:
        return False
    if array.strides[-1] != array.itemsize:
        return True
    row = array.shape[-1] * array.itemsize
    return row < SHORT_ROW and array.nbytes <= PACKED_NBYTES


def _rows(array: np.ndarray | Scattered) -> list[memoryview]:
    """Return the memory of an array as bytes, one view per run of it that is contiguous."""
    if isinstance(array, Scattered):
        return list(array.parts)
    if not array.size:
        return []
    if array.flags.c_contiguous:
        raw: Any = array.reshape(-1).view(np.uint8)
        return [memoryview(raw)]
    if array.ndim == 2:
        raw = array.view(np.uint8)
        return [memoryview(row) for row in raw]
    return [rows for part in array for rows in _rows(part)]


def _receive(connection: socket.socket, target: np.ndarray) -> None:
    if _is_packed(target):
        packed = np.empty(target.shape, target.dtype)
        _fill(connection, _rows(packed))
        target[...] = packed
    else:
        _fill(connection, _rows(target))


def _fill(connection: socket.socket, waiting: list[memoryview]) -> None:
    """Receive into views, in order, until they are full."""
    at = 0
    while at < len(waiting):
        if isinstance(connection, ssl.SSLSocket):
            got = connection.recv_into(waiting[at])
        else:
            views = waiting[at : at + VECTOR]
            got, _, _, _ = connection.recvmsg_into(views, 0, socket.MSG_WAITALL)
        if not got:
            raise ConnectionError("the peer has closed the connection")
        at = _advance(waiting, at, got)


def _advance(waiting: list[memoryview], at: int, done: int) -> int:
    """Return the first view that is not done; one that is begun is cut."""
    while at < len(waiting) and done >= waiting[at].nbytes:
        done -= waiting[at].nbytes
        at += 1
    if done:
        waiting[at] = waiting[at][done:]
    return at
