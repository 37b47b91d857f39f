"""Recording the events of an instrumented iteration, on each node in the thread that works.

The clock is injected: this module reads none of its own. A recorder owns the events of one node.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from fpmdask.errors import PartitionError
from fpmdask.mheta.instrument.events import Event

Clock = Callable[[], float]


class Recorder:
    """Collects the events of one node in one iteration.

    Parameters
    ----------
    clock : callable
        Returns seconds and never goes back, ``time.perf_counter`` for one. Clocks of different
        nodes need not agree.

    Notes
    -----
    `at` says in which section and tile the program is. The other methods return a `Call`, a
    context manager around what is timed; `Call.start` and `Call.stop` do the same where a block
    of code cannot be indented, in callbacks for one. A call that raises is not recorded. Inside of
    the timed code a call costs two readings of the clock; the events are checked when they are
    asked for. One thread records. What the instrumented iteration does otherwise than others
    (blocking issues, waits that do nothing, I/O also where a node is in core) is up to the program.

    References
    ----------
    M. Nakazawa, D. K. Lowenthal, W. Zhou (2005), The MHETA Execution Model for Heterogeneous
    Clusters, section 4.1.1.

    Examples
    --------
    One section of a halo exchange whose stage prefetches, in blocks of 4, 4 and 2 rows; this clock
    goes on by a second whenever it is read.

    >>> import itertools
    >>> recorder = Recorder(clock=map(float, itertools.count()).__next__)
    >>> blocks = [4, 4, 2]
    >>> recorder.at(section=0, tile=0)
    >>> with recorder.stage(0, rows=sum(blocks)):
    ...     with recorder.read("A", rows=blocks[0], nbytes=8 * blocks[0]):
    ...         pass                     # read block 0
    ...     for rows, following in itertools.zip_longest(blocks, blocks[1:]):
    ...         if following:
    ...             with recorder.issue("A", rows=following, nbytes=8 * following):
    ...                 pass             # read the next block, and wait until it is there
    ...         with recorder.compute(rows):
    ...             pass                 # compute this block
    ...         if following:
    ...             with recorder.wait("A"):
    ...                 pass             # nothing: the next block is there
    ...         with recorder.write("A", rows=rows, nbytes=8 * rows):
    ...             pass                 # write this block
    >>> with recorder.send(peer=1, nbytes=8):
    ...     pass
    >>> with recorder.receive(peer=1, nbytes=8):
    ...     pass
    >>> [event.kind for event in recorder.events if event.kind != "compute"]
    ['read', 'issue', 'wait', 'write', 'issue', 'wait', 'write', 'write', 'stage', 'send',
    'receive']
    >>> next(event for event in recorder.events if event.kind == "stage")
    Event(kind='stage', section=0, stage=0, tile=0, array=None, peer=None, rows=10, nbytes=None,
    start=0.0, seconds=23.0)
    """

    records = True

    def __init__(self, clock: Clock) -> None:
        if not callable(clock):
            raise PartitionError(
                f"clock is {clock!r}; a callable that returns seconds is needed, such as "
                "time.perf_counter"
            )
        self._clock = clock
        self._section: int | None = None
        self._tile: int | None = None
        self._open: Call | None = None
        self._done: list[Call] = []

    def at(self, section: int, tile: int | None = None) -> None:
        """Say in which section and tile the program is from now on.

        Parameters
        ----------
        section : int
            Counted from 0.
        tile : int, optional
            Counted from 0; needed for stages and in a pipeline.

        Raises
        ------
        PartitionError
            If a stage is open.
        """
        if self._open is not None:
            raise PartitionError(f"section {section} begins inside of {self._open}; end that first")
        self._section, self._tile = section, tile

    def stage(self, stage: int, rows: int) -> "Call":
        """Time one stage in one tile; `rows` are all rows of the node."""
        self._place("a stage", False)
        return Call(self, "stage", stage=stage, rows=rows)

    def compute(self, rows: int) -> "Call":
        """Time the computing of one block, inside of a stage and without its I/O."""
        self._place("computing", True)
        return Call(self, "compute", rows=rows)

    def read(self, array: str, rows: int, nbytes: float) -> "Call":
        """Time a blocking read: of a block in a stage, outside of it of a message's source."""
        self._place("a read", None)
        return Call(self, "read", array=array, rows=rows, nbytes=nbytes)

    def write(self, array: str, rows: int, nbytes: float) -> "Call":
        """Time a blocking write of a block, inside of a stage."""
        self._place("a write", True)
        return Call(self, "write", array=array, rows=rows, nbytes=nbytes)

    def issue(self, array: str, rows: int, nbytes: float) -> "Call":
        """Time the issue of a prefetch, which must block until the block is read."""
        self._place("an issue", True)
        return Call(self, "issue", array=array, rows=rows, nbytes=nbytes)

    def wait(self, array: str) -> "Call":
        """Time the wait for a prefetch, which must do nothing: its start is what counts."""
        self._place("a wait", True)
        return Call(self, "wait", array=array)

    def send(self, peer: int | None = None, nbytes: float | None = None) -> "Call":
        """Time the sending of a message, outside of stages."""
        self._place("a message", False)
        return Call(self, "send", peer=peer, nbytes=nbytes)

    def receive(self, peer: int | None = None, nbytes: float | None = None) -> "Call":
        """Time waiting for a message and receiving it, outside of stages.

        Who sends it and how large it is may be set while it is timed, `Call.peer` and
        `Call.nbytes`.
        """
        self._place("a message", False)
        return Call(self, "receive", peer=peer, nbytes=nbytes)

    @property
    def events(self) -> list[Event]:
        """All events so far, in the order of their ends.

        Raises
        ------
        PartitionError
            If a value that the program gave is not allowed.
        """
        return [call.event() for call in self._done]

    def clear(self) -> None:
        """Forget all events: a program may record each iteration and keep the last."""
        self._done.clear()

    def _place(self, what: str, inside: bool | None) -> None:
        """Refuse a call outside of any section, or on the wrong side of a stage's marks."""
        if self._section is None:
            raise PartitionError(f"{what} outside of any section; call at(section, tile) first")
        if inside is True and self._open is None:
            raise PartitionError(f"{what} outside of a stage; open one with stage(stage, rows)")
        if inside is False and self._open is not None:
            raise PartitionError(f"{what} inside of {self._open}; end that stage first")


class Call:
    """Something that is timed: between `start` and `stop`, or in a ``with`` block.

    Attributes
    ----------
    peer : int or None
        The other node of a message; may be set until `stop`.
    nbytes : float or None
        Bytes that are moved; may be set until `stop`.
    """

    __slots__ = (
        "_array",
        "_kind",
        "_recorder",
        "_rows",
        "_seconds",
        "_section",
        "_stage",
        "_start",
        "_tile",
        "nbytes",
        "peer",
    )

    def __init__(
        self,
        recorder: Recorder,
        kind: str,
        *,
        stage: int | None = None,
        array: str | None = None,
        peer: int | None = None,
        rows: int | None = None,
        nbytes: float | None = None,
    ) -> None:
        mark = recorder._open
        self._recorder, self._kind = recorder, kind
        self._section, self._tile = recorder._section, recorder._tile
        self._stage: int | None = stage if mark is None else mark._stage
        self._array, self.peer, self._rows, self.nbytes = array, peer, rows, nbytes
        self._start = self._seconds = 0.0

    def start(self) -> Self:
        """Begin now."""
        if self._kind == "stage":
            self._recorder._open = self
        self._start = self._recorder._clock()
        return self

    def stop(self) -> None:
        """End now, and record the event."""
        self._seconds = self._recorder._clock() - self._start
        self._close()
        self._recorder._done.append(self)

    def event(self) -> Event:
        """Return what was recorded, checked."""
        assert self._section is not None  # the recorder refuses calls outside of any section
        return Event(
            self._kind,
            self._section,
            self._stage,
            self._tile,
            self._array,
            self.peer,
            self._rows,
            self.nbytes,
            self._start,
            self._seconds,
        )

    def _close(self) -> None:
        if self._kind == "stage":
            self._recorder._open = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self._close()

    def __str__(self) -> str:
        return f"stage {self._stage} of section {self._section}, tile {self._tile}"
