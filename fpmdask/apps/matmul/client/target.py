"""The Zarr array that C is written to: what it may be, where it is, and who finds it there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from distributed import Client, get_worker
from distributed.utils import offload

from fpmdask.apps.matmul.client.written import MARK, run_of
from fpmdask.errors import PartitionError
from fpmdask.runtime.dask_private import DataNode, Task
from fpmdask.runtime.zarr_storage import is_shared, place, reopened, write_unit


def check_out(out: Any, sides: Sequence[int], index: Sequence[Any], dtype: np.dtype[Any]) -> Any:
    """Return `out` as it is in its store, or refuse what C cannot be written to.

    Parameters
    ----------
    out
        What the caller gave.
    sides : sequence of int
        Rows and columns of C.
    index : sequence
        As `as_matrices` returns it: an axis with 0 is not in `out`.
    dtype : numpy.dtype
        Of C.

    Returns
    -------
    zarr.Array
        Opened anew: the caller's knows the attributes of when it was opened. A folder has an
        absolute path, which means the same to workers that run elsewhere.

    Raises
    ------
    PartitionError
        For anything but a writable Zarr array of C's shape and dtype, in a store that several
        processes can write to.
    """
    arrays = () if (zarr := sys.modules.get("zarr")) is None else (zarr.Array,)
    if not isinstance(out, arrays):
        raise PartitionError(f"out is a {type(out).__name__}; give a zarr.Array, or None")
    shape = tuple(size for size, at in zip(sides, index, strict=True) if at != 0)
    _check_like(out, shape, dtype)
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
    _check_like(opened, shape, dtype)
    # with the next attribute, the caller's would write back what it remembers of an earlier call
    out.metadata.attributes.pop(MARK, None)
    return opened


def _check_like(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if tuple(out.shape) != shape:
        raise PartitionError(f"out has the shape {tuple(out.shape)}; C has {shape}")
    if out.dtype != dtype:
        raise PartitionError(f"out has dtype {out.dtype}; C has {dtype}")


def check_apart(out: Any, *inputs: Any) -> None:
    """Refuse to write C over an input that is read meanwhile.

    Raises
    ------
    PartitionError
        If the graph of an input holds the same Zarr array, by its place. O(arguments of tasks).
    """
    at = place(out)
    for x in inputs:
        for found in _held(dict(getattr(x, "dask", {})).values()):
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


class Target:
    """`out` as tasks write to it: only a worker that finds this call's mark there does.

    Parameters
    ----------
    out
        The array as `check_out` returned it.
    run
        What `Written` put into its attributes.
    index
        An axis of C with 0 is not in `out`.
    names
        Names or addresses of those that may write; None: all.
    """

    def __init__(
        self, out: Any, run: str, index: Sequence[Any], names: Sequence[str] | None
    ) -> None:
        self.out, self.run, self.index, self.names = out, run, tuple(index), names

    @property
    def unit(self) -> tuple[int, int]:
        """Rows and columns of C that are written as one."""
        sizes = iter(write_unit(self.out))
        rows, columns = (1 if at == 0 else next(sizes) for at in self.index)
        return rows, columns

    def __setitem__(self, region: Any, block: np.ndarray) -> None:
        if not finds(self.out, self.run):
            raise PartitionError(_elsewhere(self.out, [str(get_worker().name)]))
        try:
            self.out[region] = block
        except OSError as error:
            says = (
                f"worker {get_worker().name} cannot write to out at {self.out.store_path} "
                f"({error}); mend this and call again: tiles that are written are kept"
            )
            raise OSError(*filter(None, (error.errno, says))) from error


def finds(out: Any, run: str) -> bool:
    """Tell whether the call is known where `out` is for this process."""
    try:
        return run_of(reopened(out)) == run
    except FileNotFoundError:
        return False


async def _answer(out: Any, run: str) -> bool:
    return await offload(finds, out, run)


async def check_reached(
    client: Client, target: Target, workers: Mapping[str, str], answer_seconds: float
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
            client.run(_answer, target.out, target.run, workers=[address], on_error="return")
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
        raise PartitionError(_elsewhere(target.out, names))
    error = errors[failed[0]]
    raise PartitionError(
        f"worker {', '.join(failed)} cannot open out at {target.out.store_path} ({error}); mend "
        "this there (it needs fpmdask, zarr and the same path), or name the workers that can by "
        "workers="
    ) from error


def _elsewhere(out: Any, names: Sequence[str]) -> str:
    return (
        f"worker {', '.join(names)} does not find what this client has written to out at "
        f"{out.store_path}; give an array on storage that the client and all workers reach by the "
        "same path"
    )
