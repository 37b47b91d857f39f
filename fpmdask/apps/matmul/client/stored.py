"""Products written to a Zarr array tile by tile: matrices larger than the cluster's memory."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import dask
import dask.array as da
from distributed import Client

from fpmdask import config
from fpmdask.apps.matmul.client.arrays import check, product
from fpmdask.apps.matmul.client.checkpoint import Checkpoint
from fpmdask.apps.matmul.client.target import Target
from fpmdask.apps.matmul.plan import PANELS_HELD, MatmulSpec, deepest_panel
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.runtime.client import proxy
from fpmdask.runtime.client.inputs import accounts, taking_part
from fpmdask.runtime.client.progress import tell
from fpmdask.runtime.client.zarr_target import check_reached
from fpmdask.runtime.memory import Account
from fpmdask.runtime.zarr_storage import write_unit
from fpmdask.tuning import DEFAULT, Tuning

# Of the workers' free memory, what the inputs, their panels and twice the tile of C may fill.
FILL = 0.5
# Multiplications and additions of a tile per worker, minutes at most: a crash loses no more.
MOST_OPERATIONS = 4e12
# How often it is looked whether those are there that write.
LOOK_SECONDS = 0.5
NOBODY = "no worker that is to take part is connected; start one, or name it"


def tile_shape(
    spec: MatmulSpec,
    unit: tuple[int, int],
    nbytes: float,
    workers: int,
    *,
    panel_depth: int = DEFAULT.matmul.panel_depth,
) -> tuple[int, int]:
    """Return rows and columns of C that are computed at once.

    Parameters
    ----------
    spec : MatmulSpec
        The whole product.
    unit : tuple of int
        Rows and columns that are written as one; tiles consist of whole ones.
    nbytes : float
        Memory for the tile's rows of A, its columns of B, twice its elements of C, and panels.
    workers : int
        How many there are: each has panels of its rows of A, and of all the tile's columns of B.
    panel_depth : int
        Of these, at most.

    Returns
    -------
    tuple of int
        At most the shape of C, and of `MOST_OPERATIONS` per worker. Columns are halved first: A is
        then read once, and B once per row of tiles.

    Raises
    ------
    PartitionError
        If one unit does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> axis = (8,)
    >>> spec = MatmulSpec((8, 8, 8), np.dtype("f8"), (axis, axis), (axis, axis), "a", "b")
    >>> tile_shape(spec, (2, 2), 3000, 1), tile_shape(spec, (2, 2), 1000, 1)
    ((8, 4), (2, 2))
    """
    height, inner, width = spec.shape

    def needed(rows: int, columns: int) -> int:
        a_chunks, b_chunks = ((rows,), spec.a_chunks[1]), (spec.b_chunks[0], (columns,))
        tile = MatmulSpec((rows, inner, columns), spec.dtype, a_chunks, b_chunks, "a", "b")
        held = PANELS_HELD * deepest_panel(tile, workers, panel_depth)
        elements = inner * (rows + columns) + 2 * rows * columns + held * (rows + workers * columns)
        # sums of another dtype are there beside the rounded ones for a moment
        beside = rows * columns * spec.sums.itemsize if spec.sums != spec.dtype else 0
        return elements * spec.dtype.itemsize + beside

    def halved(length: int, least: int) -> int:
        units = -(-length // least)
        return min(length, least * -(-units // 2))

    def too_long(rows: int, columns: int) -> bool:
        more = rows > unit[0] or columns > unit[1]
        return more and 2.0 * rows * inner * columns > MOST_OPERATIONS * workers

    rows, columns = height, width
    while needed(rows, columns) > nbytes or too_long(rows, columns):
        if columns > unit[1]:
            columns = halved(columns, unit[1])
        elif rows > unit[0]:
            rows = halved(rows, unit[0])
        else:
            raise PartitionError(
                f"{rows} × {columns} elements of C, which out writes as one, need "
                f"{needed(rows, columns)} bytes with their rows of A and columns of B; the workers "
                f"have {nbytes:.0f} for them: add workers or memory, or give out smaller chunks"
            )
    return rows, columns


def free_nbytes(workers: Iterable[Account]) -> float:
    """Return the bytes that workers together may still take; inf where one has no limit."""
    return sum(account.free() for account in workers)


async def multiply_into(
    client: Client,
    a: Any,
    b: Any,
    index: tuple[Any, ...],
    out: Any,
    request: dict[str, Any],
    follow: proxy.Follow,
    tuning: Tuning,
) -> da.Array:
    """Write C[index] of C = A·B into `out`, tile by tile; return it as a lazy dask array.

    A tile is a balanced product of its own. What is written is not computed again when the same
    call is made after a failure, also where tiles are smaller or larger by then.
    """
    spec = check(a, b)
    # of one element, for the workers: whether a tile fits is asked once its size is known
    one = check(a[:1], b[:, :1]).to_json()
    await proxy.check(client, "matmul", {**request, "product": one})
    workers = await taking_part(client, request["workers"])
    if not workers:
        raise CoordinatorError(NOBODY)
    target = Target(out, uuid4().hex, index, request["workers"])
    held = await accounts(client, request["workers"])
    free = FILL * free_nbytes(held.values())
    panel_depth = tuning.matmul.panel_depth
    shape = tile_shape(spec, target.unit, free, len(workers), panel_depth=panel_depth)
    with Checkpoint(out, target.run) as written:
        await check_reached(client, target, _names(workers), tuning.runtime.out_answer_seconds)
        written.begin([_name(a), _name(b), list(spec.shape), spec.dtype.str])
        await _multiply_tiles(client, a, b, target, written, shape, request, follow, tuning)
    stored: da.Array = da.from_zarr(out)
    return stored


async def _multiply_tiles(
    client: Client,
    a: Any,
    b: Any,
    target: Target,
    written: Checkpoint,
    shape: tuple[int, int],
    request: dict[str, Any],
    follow: proxy.Follow,
    tuning: Tuning,
) -> None:
    """Compute and write what is missing, in tiles of at most this shape.

    Workers are held for a tile at a time: runs of others have their turn between two.
    """
    rows, columns, work = None, None, None
    missing = [*written.missing(a.shape[0], b.shape[1])]
    done, total = 0, max(1, sum((r1 - r0) * (c1 - c0) for r0, r1, c0, c1 in missing))
    try:
        for row0, row1, column0, column1 in missing:
            for row in range(row0, row1, shape[0]):
                rows, work = None, None  # makes room for the next
                below = min(row + shape[0], row1)
                rows = a[row:below]
                for column in range(column0, column1, shape[1]):
                    beyond = min(column + shape[1], column1)
                    columns = b[:, column:beyond]
                    low, done = done / total, done + (below - row) * (beyond - column)
                    tell({"event": "stage", "stage": "tile", "low": low, "high": done / total})
                    tile = {**request, "product": check(rows, columns).to_json()}
                    at = row, column
                    work = partial(_tile, client, rows, columns, target, at, follow, tuning)
                    rows = await proxy.leased(follow, "matmul.tiles", tile, work)
                    written.add((row, below, column, beyond))
    except BaseException as error:
        # an exception's frames hold what they name, and the client holds that of a failed task
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        del rows, columns, work  # this frame is not cleared


async def _tile(
    client: Client,
    rows: Any,
    columns: Any,
    target: Target,
    at: tuple[int, int],
    follow: proxy.Follow,
    tuning: Tuning,
    request: dict[str, Any],
) -> Any:
    """Compute and write a tile; return its rows of A, which are in the workers' memory then."""
    rows, columns, c = await product(client, rows, columns, request, follow, tuning)
    del columns  # makes room for what is written
    await _write(client, c, target, *at)
    return rows


async def fill(
    client: Client,
    c: da.Array,
    index: tuple[Any, ...],
    out: Any,
    request: dict[str, Any],
    follow: proxy.Follow,
    tuning: Tuning,
) -> da.Array:
    """Write C[index] of a C that is nothing to multiply, of a side of 0, into `out`."""
    names = request["workers"]
    workers = await taking_part(client, names)
    if not workers:
        raise CoordinatorError(NOBODY)
    target = Target(out, uuid4().hex, index, names)
    with Checkpoint(out, target.run) as written:
        await check_reached(client, target, _names(workers), tuning.runtime.out_answer_seconds)
        written.begin([c.name])
        if c.size:
            write = partial(_write, client, c, target, 0, 0)
            await proxy.leased(follow, "matmul.tiles", request, lambda _: write())
    stored: da.Array = da.from_zarr(out)
    return stored


async def _write(client: Client, c: da.Array, target: Target, row: int, column: int) -> None:
    """Write a tile; each unit of `out` by one task, so that none needs a lock."""
    region = tuple(
        slice(start, start + size)
        for start, size, at in zip((row, column), c.shape, target.index, strict=True)
        if at != 0
    )
    aligned = c[target.index].rechunk(write_unit(target.out))
    store: Any = target  # dask asks for arrays and needs what can be assigned to
    writing = da.store(aligned, store, regions=region, lock=False, compute=False)
    while not await _computed(client, writing, target.names):
        pass  # workers that start again have other addresses


async def _computed(client: Client, tasks: Any, names: Sequence[str] | None) -> bool:
    """Compute tasks on the workers with these names; False if all of them have left before.

    Raises
    ------
    CoordinatorError
        If none is there, and none comes for the seconds of ``fpmdask.recovery``.
    """
    if names is None:
        await client.compute(tasks)
        return True
    give_up = time.monotonic() + config.seconds("recovery")
    while not (there := {*await taking_part(client, names)}):
        if time.monotonic() > give_up:
            raise CoordinatorError(f"no worker of {', '.join(names)} is connected; start one")
        await asyncio.sleep(LOOK_SECONDS)
    future = client.compute(tasks, workers=[*there], allow_other_workers=False)
    done = asyncio.ensure_future(_result(future))
    try:
        while not done.done() and there & (await taking_part(client, names)).keys():
            await asyncio.wait([done], timeout=LOOK_SECONDS)
        if done.done():
            await done
            return True
    finally:
        done.cancel()
    await client.cancel([future])
    return False


async def _result(future: Any) -> None:
    await future


def _names(workers: Mapping[str, Any]) -> dict[str, str]:
    return {address: str(worker["name"]) for address, worker in workers.items()}


def _name(x: Any) -> str:
    return str(x.name) if isinstance(x, da.Array) else f"numpy-{dask.base.tokenize(x)}"
