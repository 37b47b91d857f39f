"""Zarr arrays that a call writes to: what they may be, and who finds them where the client does."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from distributed import Client
from distributed.utils import offload

from fpmdask.errors import PartitionError
from fpmdask.runtime.dask_private import DataNode, Task
from fpmdask.runtime.zarr_storage import Marked, is_shared, place, reopened


def writable(out: Any, shape: Sequence[Any], dtype: np.dtype[Any], what: str) -> Any:
    """Return `out` as it is in its store, or refuse what cannot be written to.

    Parameters
    ----------
    out
        What the caller gave.
    shape, dtype, what
        Of what is to be written, and what that is called in messages.

    Returns
    -------
    zarr.Array
        Opened anew: the caller's knows the attributes of when it was opened. A folder has an
        absolute path, which means the same to workers that run elsewhere.

    Raises
    ------
    PartitionError
        For anything but a writable Zarr array of this shape and dtype, in a store that several
        processes can write to.
    """
    arrays = () if (zarr := sys.modules.get("zarr")) is None else (zarr.Array,)
    if not isinstance(out, arrays):
        raise PartitionError(f"out is a {type(out).__name__}; give a zarr.Array, or None")
    _check_like(out, shape, dtype, what)
    if not is_shared(out):
        raise PartitionError(
            f"out is in a {type(out.store).__name__}, of which workers in other processes write "
            "copies; give an array in a store that all workers reach, such as a folder"
        )
    if out.read_only:
        raise PartitionError("out is read-only; open it with mode 'r+'")
    try:
        opened = reopened(out)
    except FileNotFoundError as error:
        raise PartitionError(f"out is not at {out.store_path} any more; make it again") from error
    _check_like(opened, shape, dtype, what)
    return opened


def _check_like(out: Any, shape: Sequence[Any], dtype: np.dtype[Any], what: str) -> None:
    if tuple(out.shape) != tuple(shape):
        raise PartitionError(f"out has the shape {tuple(out.shape)}; {what} has {tuple(shape)}")
    if _native(out.dtype) != _native(dtype):  # Zarr swaps bytes where it must
        raise PartitionError(f"out has dtype {out.dtype}; {what} has {dtype}")


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def check_apart(out: Any, *inputs: Any) -> None:
    """Refuse to write over an input that is read meanwhile.

    Raises
    ------
    PartitionError
        If an input is the same Zarr array, by its place, or its graph holds it. O(arguments of
        tasks).
    """
    at = place(out)
    for x in inputs:
        for found in (x, *_held(dict(getattr(x, "dask", {})).values())):
            if isinstance(found, type(out)) and place(found) == at:
                raise PartitionError(
                    f"out is {out.store_path}, which an input is read from; give another array"
                )


def _held(tasks: Iterable[Any]) -> Iterator[Any]:
    """Yield what tasks hold, in themselves or in their arguments."""
    left = [*tasks]
    while left:
        found = left.pop()
        if isinstance(found, DataNode):
            left.append(found.value)
        elif isinstance(found, Task):
            left += [*found.args, *found.kwargs.values()]
        elif isinstance(found, Mapping):
            left += found.values()
        elif isinstance(found, list | tuple | set | frozenset):
            left += found
        else:
            yield found


async def _answer(target: Marked) -> bool:
    return await offload(target.found)


async def check_reached(
    client: Client, target: Marked, workers: Mapping[str, str], answer_seconds: float
) -> None:
    """Refuse an array that workers do not find where the client does.

    Parameters
    ----------
    client
        It has put the call's mark into the array's attributes.
    target
        The array and that mark.
    workers
        Address -> name of those that take part, one at least.
    answer_seconds
        How long their answers are waited for.

    Raises
    ------
    PartitionError
        With the names of those that find no such mark (they would write to another place), or
        that cannot look: they lack fpmdask or zarr, or may not read it.
    """
    asking = {
        address: asyncio.ensure_future(
            client.run(_answer, target, workers=[address], on_error="return")
        )
        for address in workers
    }
    try:
        await asyncio.wait(asking.values(), timeout=answer_seconds)
        answers = {a: asked.result().get(a) for a, asked in asking.items() if asked.done()}
    finally:
        for asked in asking.values():
            asked.cancel()
    lacking = [address for address, found in answers.items() if found is not True]
    if not lacking:
        return
    scheduler: Any = client.scheduler
    known = (await scheduler.identity(n_workers=-1))["workers"]
    names = [workers[address] for address in lacking if address in known]  # the others have left
    if not names:
        return
    errors = {workers[a]: answers[a] for a in lacking if isinstance(answers[a], Exception)}
    failed = [name for name in names if name in errors]
    if not failed:
        raise PartitionError(target.elsewhere(names))
    error = errors[failed[0]]
    raise PartitionError(
        f"worker {', '.join(failed)} cannot open out at {target.out.store_path} ({error}); mend "
        "this there (it needs fpmdask, zarr and the same path), or name the workers that can by "
        "workers="
    ) from error
