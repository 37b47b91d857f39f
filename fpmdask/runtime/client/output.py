"""`out=` of iterations: the Zarr arrays that a call writes its fields to, one for each.

Runs on the client, which makes and marks the arrays; workers write to them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from math import ceil, prod
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import dask.array as da
import numpy as np
from distributed import Client

from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.runtime.client.inputs import taking_part
from fpmdask.runtime.client.zarr_target import check_apart, check_reached, writable
from fpmdask.runtime.zarr_storage import (
    OUT_MARK,
    Marked,
    packed,
    place,
    reopened,
    snapshot_index,
    write_unit,
)

# Bytes of a chunk of an array that is made.
CHUNK_NBYTES = 8 << 20
# Seconds for which a call that fails waits, at least, for a worker that has read which snapshots
# there are, and is about to write that there is one more.
NOTING_SECONDS = 0.05
# Files of arrays and groups, of both formats of Zarr, that are no chunks.
METADATA = frozenset({"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"})


class Output:
    """The arrays of a call; as a context manager, the time in which it writes to them.

    Parameters
    ----------
    out
        What the caller gave: a `zarr.Array`, for several fields a tuple of them; or a `zarr.Group`,
        a path or an fsspec URL, where arrays that are not there are made.
    shape, dtypes
        Of the fields.
    several
        Whether there is a tuple of fields.
    every, iterations
        Iterations from one snapshot to the next, None without; iterations in all, at most.

    Attributes
    ----------
    call
        What tells the same call when it is made again to go on from a checkpoint; None: it begins
        anew, after the snapshots that are there.

    Raises
    ------
    PartitionError
        For what the fields cannot be written to. On entering, too.
    """

    def __init__(
        self,
        out: Any,
        shape: Sequence[int],
        dtypes: Sequence[np.dtype[Any]],
        several: bool,
        every: int | None,
        iterations: int,
    ) -> None:
        self._every, self._iterations = every, iterations
        self.call: str | None = None
        self._shape, self._run = tuple(shape), uuid4().hex
        self._begin = 0
        self._made: list[Any] = []
        self.targets: list[Marked] = []
        try:
            self._given = _arrays(out, shape, dtypes, several, every is not None, self._made)
            self._check(dtypes)
        except BaseException:
            self.discard()
            raise

    def _check(self, dtypes: Sequence[np.dtype[Any]]) -> None:
        shape, every = self._shape, self._every
        if len(self._given) != len(dtypes):
            raise PartitionError(f"out has {len(self._given)} arrays for {len(dtypes)} fields")
        for array, dtype in zip(self._given, dtypes, strict=True):
            wanted: tuple[Any, ...] = tuple(shape)
            if every is not None:
                leads = getattr(array, "ndim", 0) == len(shape) + 1
                wanted = (array.shape[0] if leads else "snapshots", *shape)
            found = writable(array, wanted, dtype, "the result")
            self.targets.append(Marked(found, OUT_MARK, self._run))
        places = [place(target.out) for target in self.targets]
        if len(set(places)) < len(places):
            raise PartitionError("out has the same array for two fields; give each its own")
        if every is not None:
            _check_snapshots(self.targets)

    def discard(self) -> None:
        """Remove what this call has made in local folders, if nothing was written to any of it."""
        for made in self._made:
            if hasattr(made, "shape") and not (_is_new(made) and self._is_unused(made)):
                return
        for made in reversed(self._made):
            if _is_new(made):
                shutil.rmtree(place(made)[1], ignore_errors=True)

    def _is_unused(self, array: Any) -> bool:
        """Tell whether no snapshot was noted, of zeros neither, and no other call has begun."""
        try:
            state = Marked(array, OUT_MARK, self._run).state()
        except FileNotFoundError:
            return True
        return "iterations" not in state and state.get("run", self._run) == self._run

    def check_apart(self, *inputs: Any) -> None:
        """Refuse arrays that an input is read from."""
        for target in self.targets:
            check_apart(target.out, *inputs)

    async def check_reached(
        self, client: Client, workers: Sequence[str] | None, answer_seconds: float
    ) -> None:
        """Refuse arrays that workers do not find where the client does."""
        there = await taking_part(client, workers)
        if not there:
            raise CoordinatorError("no worker that is to take part is connected; start one")
        names = {address: str(worker["name"]) for address, worker in there.items()}
        for target in self.targets:
            await check_reached(client, target, names, answer_seconds)

    def __enter__(self) -> Self:
        states = [target.state() for target in self.targets]
        before: Sequence[int] = ()
        if self._every is not None:
            again = self.call is not None and all(s.get("call") == self.call for s in states)
            # a worker that hears late of a call's end may note one that is cut off
            length = min(reopened(target.out).shape[0] for target in self.targets)
            before = min((s.get("iterations", ()) for s in states), key=len)[:length]
            self._begin = min(s["begin"] for s in states) if again else len(before)
        # before they get longer: what is longer than an earlier call has left it has a mark
        for target in self.targets:
            with _explained(target):
                begin = None if self._every is None else self._begin
                target.update(
                    run=self._run, call=self.call, begin=begin, iterations=[*before] or None
                )
        last = snapshot_index(self._begin, self._every, self._iterations)
        if last is not None:
            self._resize(last + 1)
        return self

    def order(self) -> dict[str, Any]:
        """Return what workers are told, plain data."""
        return {
            "arrays": [packed(target.out) for target in self.targets],
            "run": self._run,
            "every": self._every,
            "begin": self._begin,
            "nbytes": max(self._written_nbytes(target.out) for target in self.targets),
        }

    def _written_nbytes(self, array: Any) -> int:
        """Return what a worker is to have free for the rows that are written as one.

        What they are encoded to counts in part: it is gone at once, as that of chunks that are read
        is, and plans leave memory for both. Where they are more than one chunk, or part of one, as
        the last ones may be, Zarr copies them to whole chunks; those of several snapshots it reads
        before.
        """
        unit, shape = write_unit(array), tuple(self._shape)
        snapshots = prod(unit[: -len(shape)])
        rows, *others = unit[-len(shape) :]
        whole = [ceil(length / size) * size for size, length in zip(others, shape[1:], strict=True)]
        nbytes = snapshots * rows * prod(whole) * int(array.dtype.itemsize)
        if snapshots > 1:
            return nbytes * 7 // 2
        if (*others,) != shape[1:] or getattr(array, "shards", None) is not None:
            return 2 * nbytes
        last = shape[0] % rows / rows
        return int(nbytes * min(2.0, 1.25 + last))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # what went wrong matters to the caller, not that this goes wrong then, too
        with contextlib.suppress(Exception) if kind is not None else contextlib.nullcontext():
            if not all(target.found() for target in self.targets):
                return  # another call has begun to write to them
            over: dict[str, Any] = {"run": None}
            if kind is None or self.call is None:  # else the same call goes on
                over |= {"call": None, "begin": None}
            began = time.monotonic()
            for target in self.targets:
                # the mark stays until the array is as long as it says
                new = self._every is not None and "iterations" not in target.state()
                target.update(**over, **({"iterations": []} if new else {}))
            if self._every is not None:
                if kind is not None:  # a worker may have been about to write what it has read
                    time.sleep(max(NOTING_SECONDS, 2 * (time.monotonic() - began)))
                    for target in filter(Marked.found, self.targets):
                        target.update(**over)
                # no worker notes a snapshot any more
                self._resize(min(len(t.state().get("iterations", ())) for t in self.targets))
                for target in self.targets:
                    if not target.state().get("iterations"):
                        target.update(iterations=None)
            for array, target in zip(self._given, self.targets, strict=True):
                # the caller's, which knows the metadata of when it was opened
                attributes = array.metadata.attributes
                attributes.clear()
                attributes.update(reopened(target.out).attrs.asdict())
                array.resize(target.out.shape)

    def results(self) -> list[da.Array]:
        """Return lazy arrays of the fields after the last iteration."""
        found = [da.from_zarr(reopened(target.out)) for target in self.targets]
        return [x if self._every is None else x[-1] for x in found]

    def _resize(self, snapshots: int) -> None:
        for target in self.targets:
            with _explained(target):
                target.out = reopened(target.out)  # with its attributes of now
                target.out.resize((snapshots, *self._shape))


@contextlib.contextmanager
def _explained(target: Marked) -> Any:
    """Say what is wrong where an array's metadata cannot be written."""
    try:
        yield
    except OSError as error:
        raise PartitionError(
            f"out at {target.out.store_path} cannot be written to ({error}); give an array that "
            "this client and the workers may write to"
        ) from error


def _check_snapshots(targets: Sequence[Marked]) -> None:
    """Refuse snapshots that would be written over, or cut off: of no call, or not of all fields."""
    states = [target.state() for target in targets]
    for target, state in zip(targets, states, strict=True):
        length = int(target.out.shape[0])
        if length and not state and not _is_new(target.out):
            raise PartitionError(
                f"out at {target.out.store_path} has {length} snapshots of no call of this kind "
                f"(it has no attribute {OUT_MARK!r}), which would be lost; give an array whose "
                "first axis has the length 0, or another path"
            )
    counts = [
        min(len(state.get("iterations", ())), int(target.out.shape[0]))
        for target, state in zip(targets, states, strict=True)
    ]
    # a call that is cut off may have noted one of some fields only
    if len({*counts}) > 1 and not any("run" in state for state in states):
        have = ", ".join(map(str, counts))
        raise PartitionError(
            f"out has {have} snapshots of the fields; give arrays that have as many, or others: "
            "those that only some have would be lost"
        )


def _is_new(node: Any) -> bool:
    """Tell whether an array, or group, is a local folder that has nothing but metadata."""
    kind, folder = place(node)
    found = Path(folder) if kind == "file" else None
    return found is not None and found.is_dir() and {x.name for x in found.iterdir()} <= METADATA


def _arrays(
    out: Any,
    shape: Sequence[int],
    dtypes: Sequence[np.dtype[Any]],
    several: bool,
    leads: bool,
    made: list[Any],
) -> Sequence[Any]:
    """Return an array for each field; make those that are not there in a path or group.

    What is made where a local folder has nothing yet is added to `made`, the group, too.
    """
    if several and isinstance(out, tuple | list):
        return out
    path = isinstance(out, str | os.PathLike)
    if path:  # of the folders that Zarr opens by itself, files are replaced as a whole
        out = os.fspath(out).removeprefix("file://")
    if not path and "zarr" not in sys.modules:
        return [out]
    import zarr

    if not path and not isinstance(out, zarr.Group):
        return [out]
    rows = max(1, min(shape[0], CHUNK_NBYTES // max(1, prod(shape[1:]) * dtypes[0].itemsize)))
    sizes: dict[str, Any] = {"shape": tuple(shape), "chunks": (rows, *shape[1:])}
    if leads:
        sizes = {"shape": (0, *shape), "chunks": (1, *sizes["chunks"])}
    vacant = path and not os.path.lexists(out)
    try:
        if path and not several:
            try:
                return [zarr.open_array(out, mode="r+")]
            except FileNotFoundError:
                array = zarr.create_array(out, dtype=dtypes[0], **sizes)
                made.extend([array] if vacant else [])
                return [array]
        group = out
        if path:
            try:
                group = zarr.open_group(out, mode="r+")
            except FileNotFoundError:
                group = zarr.create_group(out)
                made.extend([group] if vacant else [])
        found = []
        for name, dtype in zip(field_names(len(dtypes)), dtypes, strict=True):
            if name not in group:
                vacant = not os.path.lexists(os.path.join(place(group)[1], name))
                array = group.create_array(name, dtype=dtype, **sizes)
                made.extend([array] if vacant else [])
            found.append(group[name])
        return found
    except (OSError, ValueError, TypeError, ImportError) as error:
        raise PartitionError(f"out = {out!r} cannot be opened ({error})") from error


def field_names(count: int) -> list[str]:
    """Return what the arrays of several fields are called in a group.

    Examples
    --------
    >>> field_names(2)
    ['field0', 'field1']
    """
    return [f"field{n}" for n in range(count)]
