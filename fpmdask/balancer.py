"""The public face: one method per application."""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from distributed import Client, default_client

from fpmdask import config
from fpmdask.apps import APPS
from fpmdask.errors import CoordinatorError, NoWorkersError, PartitionError
from fpmdask.partition.settings import check_gain
from fpmdask.partition.validate import check_units
from fpmdask.runtime.app import find, messages
from fpmdask.runtime.client import arguments, models, proxy
from fpmdask.runtime.client.inputs import letting_go
from fpmdask.runtime.client.kernels import KernelLike, kernel_spec
from fpmdask.runtime.client.models import Models
from fpmdask.runtime.client.progress import CallProgress, Wanted, checked, tell
from fpmdask.runtime.client.shares import Shares
from fpmdask.runtime.recent import Recent
from fpmdask.runtime.report import TOO_SHORT, Report, build
from fpmdask.runtime.version import without_fpmdask
from fpmdask.timing import TimingPolicy
from fpmdask.timing.measure import SHORTEST_SECONDS

if TYPE_CHECKING:
    import dask.array as da
    import dask.dataframe as dd
    import pandas as pd

    from fpmdask.apps.records.client import SortedRecords

# Names of workers of which a client has been warned, the last of them.
_WARNED: WeakKeyDictionary[Client, Recent] = WeakKeyDictionary()
MOST_WARNED = 1 << 12
# A call that Ctrl-C has cancelled is waited for so long: it ends its run and tidies up.
INTERRUPTED_SECONDS = 10.0
# The method that is called, until it has given its work to the client's event loop.
_METHOD: ContextVar[str] = ContextVar("fpmdask_method", default="")

Given = ParamSpec("Given")
Result = TypeVar("Result")


def _a_call(
    method: Callable[Concatenate[Balancer, Given], Result],
) -> Callable[Concatenate[Balancer, Given], Result]:
    """Have the report of a call that fails, or is refused, not be the one of the call before.

    And have its progress bear the name of the method.
    """

    @wraps(method)
    def call(self: Balancer, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        self.report = None
        before = _METHOD.set(method.__name__)
        try:
            return method(self, *args, **kwargs)
        finally:
            _METHOD.reset(before)

    return call


class Balancer:
    """Bulk work on unequal workers in the shares that make them finish together.

    Parameters
    ----------
    client : distributed.Client, optional
        Synchronous or asynchronous, by default the default client. With an asynchronous one,
        ``await fpmdask.Balancer(client)`` and await every method.
    workers : sequence of str, optional
        Names or addresses of the workers to use; by default all that are there when a run starts,
        and those that join.
    progress : bool or callable, optional
        True: how far a call is is shown in the notebook, or on the terminal (which needs
        ``fpmdask[progress]``); False: nothing is shown; None: it is shown in notebooks, and on a
        terminal, of calls that take longer than half a second. A function is called with one
        mapping per event instead, in the client's event-loop thread: ``event``, ``seconds`` since
        the run's start, the ``fraction`` of the call that is done, and where a phase is counted its
        ``phase``, ``done``, ``total`` and ``unit``. Where nothing happens for a second it hears
        again how far the call is. The last event is ``"end"`` or ``"failed"``.

    Raises
    ------
    CoordinatorError
        If the client is closed, the scheduler has no fpmdask, or `progress` needs what is missing.
    VersionMismatchError
        If the scheduler runs another version.

    Notes
    -----
    The coordinator is installed on the scheduler once; further balancers, also of other clients,
    find it there and share its models. `close` closes nothing but this object.

    Examples
    --------
    >>> from distributed import Client
    >>> with Client(n_workers=2, threads_per_worker=1, processes=False,
    ...             dashboard_address=":0") as client:
    ...     balancer = Balancer(client)
    ...     emulated = ("emulated", {"models": {
    ...         name: {"format": "fpmdask.model", "version": 1,
    ...                "kind": "constant", "units_per_second": speed}
    ...         for name, speed in {"0": 100.0, "1": 200.0}.items()}})
    ...     found = balancer.partition(emulated, 300)
    >>> sorted(found.values())
    [100, 200]
    """

    def __init__(
        self,
        client: Client | None = None,
        workers: Sequence[str] | None = None,
        *,
        progress: Wanted = None,
    ) -> None:
        if client is None:
            try:
                client = default_client()
            except ValueError as error:
                raise CoordinatorError(
                    "no client was given, and there is no default one; connect a "
                    "distributed.Client first"
                ) from error
        if not isinstance(client, Client):
            raise CoordinatorError(
                f"found a {type(client).__name__}; give a connected distributed.Client"
            )
        several = isinstance(workers, Iterable) and not isinstance(workers, str)
        if workers is not None and not (several and list(workers)):
            raise CoordinatorError(
                f"workers = {workers!r}; give a sequence of names or addresses, or None for all"
            )
        self.client = client
        self.workers = None if workers is None else [str(worker) for worker in workers]
        self.progress = checked(progress)
        self.report: Report | None = None
        self._closed = False
        self._installed = False
        if client.status not in ("running", "connecting", "newly-created"):
            raise CoordinatorError(
                f"found a client that is {client.status}; connect a new distributed.Client"
            )
        if not client.asynchronous:
            with proxy.seceded():
                client.sync(self._install)

    def __await__(self) -> Generator[Any, Any, Self]:
        return self._install().__await__()

    async def _install(self) -> Self:
        settings = {"apps": APPS, "slots": int(config.setting("slots"))}
        await proxy.install(self.client, settings)
        self._installed = True
        return self

    # ---- applications

    @_a_call
    def partition(
        self,
        kernel: KernelLike,
        units: int,
        *,
        epsilon: float | None = None,
        limits: Mapping[str, float] | None = None,
        max_rounds: int | None = None,
        timing: TimingPolicy | None = None,
        deadline: str | float | None = None,
        scout: int = 0,
        least_gain: float = 0.0,
        name: str | None = None,
    ) -> Any:
        """Find how many units of ``kernel`` each worker should get, by DFPA on the workers.

        Parameters
        ----------
        kernel
            A function of the units, an object or class with the methods of
            `fpmdask.timing.Kernel`, the name of a registered kernel, or a pair (name, parameters).
        units
            Units to distribute.
        epsilon
            Imbalance to reach, > 0. One that is given is pursued until it is met or the models
            allow nothing better, unless rounds have a price (`least_gain`); the configured one only
            as long as a round promises a gain.
        limits
            Worker name → most units that it may get.
        max_rounds
            Most rounds, scouting included.
        timing
            How long each measurement repeats.
        deadline
            Longest measurement of one size, seconds or ``"30s"``; a size that takes longer is too
            large and becomes the worker's limit.
        scout
            Units of a first, short round on every worker of which nothing is known. Without it the
            first round is even, as in the paper, and lasts as long as the slowest worker needs.
            With a `max_rounds` of 1 the units follow the speeds that it finds.
        least_gain
            Relative gain in makespan that pays for another round, >= 0.
        name
            What models know a function or class by, in the place of its own name and code: they
            hold although the code changes.

        Returns
        -------
        Shares
            A mapping of worker name to units; `numpy.asarray` gives the units in worker order, its
            ``report`` has the rounds and why they ended. Units are shared out evenly, with a
            warning, where the kernel is too short to be timed.

        Raises
        ------
        PartitionError
            For bad units, epsilon, limits, rounds, scout or gain.
        KernelError
            For a kernel that cannot be used. What the kernel itself raises on every worker is
            raised here, with its remote traceback.

        References
        ----------
        Lastovetsky and Reddy (2009), section 2.
        """
        spec = {
            "workers": self.workers,
            "kernel": kernel_spec(kernel, name),
            "units": check_units(units),
            "limits": arguments.checked_limits(limits),
            "measuring": {
                **arguments.measuring(epsilon, max_rounds, timing, deadline),
                "scout": arguments.checked_scout(scout),
                "least_gain": check_gain(least_gain),
            },
        }
        return self._sync(self._partition, spec)

    async def _partition(self, spec: dict[str, Any]) -> Shares:
        _, report = await self._follow("partition", spec)
        if report.reason == TOO_SHORT:
            warnings.warn(
                f"the kernel takes less than {SHORTEST_SECONDS * 1e6:.0f} µs for its share on most "
                "workers, too little to time: the units are shared out evenly; give it more to do "
                "per unit, or more units",
                stacklevel=2,
            )
        return Shares(report)

    @_a_call
    def matmul(
        self,
        a: da.Array | np.ndarray,
        b: da.Array | np.ndarray,
        *,
        layout: str | Mapping[str, Sequence[Any]] = "auto",
        epsilon: float | None = None,
        distribution: Mapping[str, int] | None = None,
        max_rounds: int | None = None,
        timing: TimingPolicy | None = None,
        depth: int | None = None,
        rebalance: bool | None = None,
        out: Any = None,
    ) -> Any:
        """Multiply two matrices, each worker computing a part of C in proportion to its speed.

        Parameters
        ----------
        a, b
            Dask, NumPy, Zarr or xarray arrays (M × K and K × N), any chunks, known sizes; lazy ones
            are persisted by this client, each chunk on a worker that needs it (wherever they may
            run, where they have annotations or depend on what is in memory). Vectors as
            `numpy.matmul` has them: K elements each, and that axis is not in C.
        layout
            ``"rows"``: rows of A and C are sliced, all of B goes everywhere. ``"columns"``: the
            rectangles in columns that need the fewest rows of A and columns of B. ``"nrrp"``: a
            worker much faster than others may get a rectangle without a corner, which needs fewer
            still. ``"inner"``: each worker multiplies a range of K, and these sums are added up,
            which moves least where K is far longer than M and N; units are columns of A then.
            ``"auto"``: the one of these that is expected to end first, moving included; `report`
            says why. A mapping of worker name → sequence of
            `fpmdask.layout.Rectangle` of blocks (a layout's `zones`) is taken as it is, spread over
            C; nothing is measured then.
        epsilon, max_rounds, timing
            As for `partition`. Without the first two one short round is measured, as who is done
            early helps the others; with ``rebalance=False`` as many as DFPA wants, and two with
            ``"inner"``, where nobody helps.
        distribution
            Worker name → rows of C of full width, as `partition` or an earlier report found them
            (columns of full height where C has few rows); nothing is measured then. With
            ``layout="rows"`` they are handed out in the order of the mapping; otherwise each worker
            gets as many elements.
        depth
            Depth of the timed panel update, from 1 to K; by default it follows from what DFPA may
            cost.
        rebalance
            Let workers that are done help those that are last; by default unless a distribution
            is given.
        out
            A `zarr.Array` of C's shape and dtype on storage that the client and all workers reach
            by the same path: C is computed in tiles for which the workers have memory, each a
            balanced product, and written to it. Lazy inputs are read when a tile needs them: A
            once, B once per row of tiles. After a failure the same call computes only what is
            missing, in smaller tiles where there is less memory; inputs are told by their names,
            which for Zarr are those of the files: they must be the same still. `out` must not be
            where A or B is read from. While a call writes to it, its attributes have an entry
            ``"fpmdask.matmul"``, which after a failure tells what is written.

        Returns
        -------
        dask.array.Array
            C = A·B, complete and in the workers' memory, each chunk on the worker that computed
            it; an `xarray.DataArray` of it where A or B is one, with their names and coordinates.
            Its chunks are cut wherever a worker's part begins or ends. With `out`, a lazy
            array of what is stored there; `report` is that of the last tile.

        Raises
        ------
        PartitionError
            For shapes, dtypes, chunks, a layout or an `out` that cannot be, or when C, the panels,
            what the workers hold and the inputs that are yet to be read or sent do not fit into
            their memory; `out` needs less.
        ChunksLostError
            If the only copy of an input chunk was on a worker that died.

        Notes
        -----
        Where C has more columns than rows, and fewer rows than sixteen per worker or a sixteenth of
        the columns, it is shared out by columns, as the rows of Cᵀ = Bᵀ·Aᵀ of the same chunks;
        units are columns then. Not so with a layout of rows, of rectangles, or rows per worker.

        O(workers) tasks. Each worker receives its rows of A and its columns of B once, panel by
        panel, and keeps its part of C and at most two panels of A and B. What several need of a
        worker behind a link four times slower than the middle one crosses it once: one of the
        others keeps it for them, where its memory has room. Who takes lines off another receives
        what these need, too. With ``"inner"`` it is O(chunks + workers²) tasks; a worker receives
        what others have of its range, and some of them what all have added up. It has its range
        and three times C in memory at once; lazy inputs are read where Dask has it done, and nobody
        helps whoever is last.

        Nothing is measured where this coordinator has seen products of that dtype with shares of
        about the same size on these workers, or on all but some that get a tenth of the rows at
        most, unless `epsilon`, `max_rounds`, `timing` or `depth` is given. A worker that has
        finished multiplies lines of the part that is expected last by the panels that are left,
        where all end at least 0.2 s sooner; the sum goes to the part's owner, so that C lies as
        laid out.

        A chunk of C that is lost later, with its worker, is made again from A and B as for any
        persisted collection: if these can be made again. NumPy inputs are sent to the workers for
        the time of the call and cannot; give dask arrays where that matters.

        References
        ----------
        Lastovetsky and Reddy (2009), section 3 and Fig. 3.
        """
        from fpmdask.apps.matmul import user_layout
        from fpmdask.apps.matmul.client import arrays, stored, target
        from fpmdask.runtime.client import conversions
        from fpmdask.runtime.client.zarr_target import check_apart

        if rebalance is not None and not isinstance(rebalance, bool):
            raise PartitionError(f"rebalance = {rebalance!r}; give True, False or None")
        kind = user_layout.check_layout(layout)
        measuring = arguments.measuring(epsilon, max_rounds, timing, None)
        back = conversions.like_product(a, b)
        a, b, index = arrays.as_matrices(conversions.as_array(a), conversions.as_array(b))
        if (zeros := arrays.empty(a, b)) is not None:
            arrays.check_depth(depth, max(1, a.shape[1]))
            if distribution is not None:
                arrays.check_distribution(distribution, (*a.shape, b.shape[1]), kind)
            if out is None:
                return self._sync(conversions.converted(back, self._persisted), zeros[index])
            out = target.check_out(out, zeros.shape, index, zeros.dtype)
            return self._sync(self._matmul, stored.fill, zeros, index, out, self._request())
        spec = arrays.check(a, b)
        if timing is None:
            measuring["policy"] = None  # follows from the size of the product
        if distribution is not None:
            distribution = arrays.check_distribution(distribution, spec.shape, kind)
        zones = None
        if not isinstance(kind, str):
            if distribution is not None or out is not None:
                raise PartitionError("a mapping as layout leaves no room for distribution or out")
            zones, kind = kind, "given"
            distribution = user_layout.rows_of(zones, spec)
        request = {
            "workers": self.workers,
            "layout": kind,
            "zones": zones,
            "distribution": distribution,
            "depth": arrays.check_depth(depth, spec.shape[1]),
            "rebalance": distribution is None if rebalance is None else rebalance,
            "thorough": epsilon is not None or max_rounds is not None,
            # who says how to measure wants it measured
            "known": all(given is None for given in (epsilon, max_rounds, timing, depth)),
            "product": spec.to_json(),
            "lazy": [],
            "recovery": config.seconds("recovery"),
            "measuring": measuring,
        }
        if out is not None:
            if distribution is not None:
                raise PartitionError("out is computed in tiles: no distribution of whole rows fits")
            out = target.check_out(out, spec.shape[::2], index, spec.dtype)
            check_apart(out, a, b)
            into = stored.multiply_into
            return self._sync(self._matmul, into, a, b, index, out, request)
        multiply = conversions.converted(back, self._matmul)
        return self._sync(multiply, arrays.multiply, a, b, index, request)

    async def _matmul(self, multiply: Callable[..., Awaitable[da.Array]], *given: Any) -> da.Array:
        return await multiply(self.client, *given, self._follow, config.tuning())

    async def _persisted(self, x: da.Array) -> da.Array:
        persisted: da.Array = self.client.persist(x)
        return persisted

    @_a_call
    def sort(self, x: da.Array | np.ndarray, *, descending: bool = False) -> Any:
        """Sort a one-dimensional array, each worker a part in proportion to its speed.

        Parameters
        ----------
        x
            A dask, NumPy, Zarr or xarray array of booleans, numbers, dates, strings of fixed
            length or bytes, in any chunks, also of unknown size; the values of a dask or pandas
            series of such a dtype, without its index. Lazy arrays are persisted by this client.
        descending
            The reverse of the ascending order.

        Returns
        -------
        dask.array.Array
            The keys in order, complete and in the workers' memory: one chunk per worker and
            thread; an `xarray.DataArray` of it where `x` is one, without coordinates. NaN and NaT
            come last, as `numpy.sort` has them; descending they come first.

        Raises
        ------
        PartitionError
            For an array that cannot be sorted, or where a run of keys and a part of the result,
            beside the input, do not fit into the workers' memory.
        ChunksLostError
            If the only copy of an input chunk was on a worker that died.

        Notes
        -----
        Sample sort: each worker sorts what it holds in blocks that stay in the cache (a slow one
        hands untouched chunks to fast ones), splitters are placed by samples and rounds of exact
        counts, mostly one, so that every part is within 1 % of its share whatever the keys are:
        equal ones are split. Then each worker takes its part from all blocks and sorts it, in
        buckets that stay near the processor, each as soon as it is there. Every key moves once at
        most, handed-over ones twice. Where a worker is lost in the middle, the others start over,
        and a NumPy array is sent again, unless the balancer's workers are named. A chunk of the
        result that is lost later is made again from all of the input, some of it at once; where
        that was a NumPy array, it cannot be. 0.0 and -0.0 are one key: as `numpy.sort` of short
        arrays does, sorting in blocks may give some the other sign.

        O(workers) tasks, O(workers²) messages between workers.

        References
        ----------
        C. Cérin, J.-C. Dubacq, J.-L. Roch (2006), Methods for Partitioning Data to Improve Parallel
        Execution Time for Sorting on Heterogeneous Clusters.
        """
        return self._sort(x, descending, index=False)

    @_a_call
    def argsort(self, x: da.Array | np.ndarray, *, descending: bool = False) -> Any:
        """Return the positions of an array's keys in order, as `sort` arranges them.

        Parameters
        ----------
        x, descending
            As for `sort`.

        Returns
        -------
        dask.array.Array
            int64; ``x[found]`` is sorted. Equal keys come in any order.

        Raises
        ------
        PartitionError, ChunksLostError
            As for `sort`; a key and its position need memory.

        Notes
        -----
        As `sort`; positions travel with their keys. Booleans, numbers of up to 64 bits, dates and
        durations are sorted as words together with their numbers, which takes two to three times
        as long as to sort them, and a third of what `numpy.argsort` takes.
        """
        return self._sort(x, descending, index=True)

    @_a_call
    def sort_values(
        self,
        ddf: dd.DataFrame | pd.DataFrame,
        by: Any,
        ascending: bool | Sequence[bool] = True,
        na_position: str = "last",
    ) -> Any:
        """Sort the rows of a dask DataFrame, each worker a part in proportion to its speed.

        Parameters
        ----------
        ddf
            A dask DataFrame of pandas partitions, lazy or persisted; lazy ones are persisted by
            this client. A pandas one is sent to the workers for the time of the call.
        by
            A column, or a list of columns, the first of which counts most; the name of the index
            may be among them. Booleans, numbers, dates, durations, periods, categories (in the
            order of these), strings, bytes; also nullable ones and those of Arrow.
        ascending
            One for all, or one for each of `by`.
        na_position
            ``"last"`` or ``"first"``: where nulls go, whichever direction. Nulls and infinities are
            different: nulls come before -inf with ``"first"``, by one key and by several (pandas
            takes NaN and -inf as equal if there are several).

        Returns
        -------
        dask.dataframe.DataFrame
            All columns and the index in the order of `pandas.DataFrame.sort_values` with
            ``kind="stable"``, complete and in the workers' memory: one partition per worker and
            thread. Divisions are of the index: they are known where `by` is its name, ascending,
            without nulls and not of categories; rows of one index are in one partition then.

        Raises
        ------
        PartitionError
            For what is no DataFrame, labels that are not there or not unique, directions that
            do not fit them, values that have no order, categories without a union, where keys and
            the room to sort them do not fit into the workers' memory, or without dask.dataframe.
            That of a lazy frame is refused as soon as what is there of it needs too much.
        ChunksLostError
            If the only copy of a partition was on a worker that died.
        CoordinatorError
            If a worker that holds rows is silent, or paused, for longer than ``fpmdask.hang``.

        Notes
        -----
        Workers that hold more rows than they have a share of hand some over first. Rows become keys
        of 64 bits where that suffices (up to 512 otherwise) that end in the row's number, which are
        sorted as by `sort`. Columns of NumPy's dtypes travel with the keys. Of other frames each
        row moves once afterwards, to where its key is; also where the index alone is sorted by,
        ascending, where keys of more than 64 bits do not hold all columns of `by`, and where a
        worker is lost or memory is short. The step that needs a lost worker starts over.

        Rows whose keys are equal in what of them fits are sorted where they end up, which is one
        partition for all of them: partitions are uneven where very many rows agree in the first
        sixty bytes of long strings, or in the index.

        A partition that is lost later, with its worker, is made again from the input as for any
        persisted collection; a pandas frame cannot be made again.

        O(partitions + parts · workers) tasks, and two for each part where columns travel with keys,
        beside those that make lost parts again. Beside the input, the keys and then the result with
        the pieces it is made from need memory. If there are few different strings in a column (4096
        at most), all of them pass through this client.
        """
        try:
            from fpmdask.apps.frames.client import labels
            from fpmdask.apps.frames.client.sort_values import sort_values
            from fpmdask.apps.sort.client import arrays
        except ImportError as missing:
            raise PartitionError(
                f"dask.dataframe cannot be used here ({missing}); install fpmdask[dataframe], on "
                "the workers too"
            ) from None
        order = labels.check(ddf, by, ascending, na_position)
        return self._sync(self._sort_values, sort_values, arrays.sort, ddf, order)

    async def _sort_values(
        self,
        sort_values: Callable[..., Awaitable[Any]],
        sort_keys: Callable[..., Awaitable[Any]],
        frame: dd.DataFrame | pd.DataFrame,
        order: Any,
    ) -> dd.DataFrame:
        request = self._request()
        made, moved = await sort_values(
            self.client,
            frame,
            order,
            request,
            self._follow,
            sort_keys,
            config.tuning(),
        )
        if moved is not None:
            assert self.report is not None
            self.report = self.report.with_rows(moved)
        found: dd.DataFrame = made
        return found

    @_a_call
    def sort_records(
        self,
        sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        target: str | os.PathLike[str],
        *,
        distribution: Mapping[str, int] | None = None,
        checksum: bool = True,
    ) -> Any:
        """Sort files of 100-byte records by their 10-byte keys, also more than memory holds.

        Parameters
        ----------
        sources
            Paths, globs or fsspec URLs of files that the workers can read; those of a local disk
            are read by the workers that see them.
        target
            A folder that all workers share, empty or new: path or fsspec URL. If it holds what an
            earlier call for the same files has left, its finished parts are taken up: they have
            their length and what was noted of them, and are not read again.
        distribution
            Worker name → records, all of them; by default what lets all finish together.
        checksum
            Sum up the CRC-32 of all records, which takes half as long as the rest of the sorting.

        Returns
        -------
        SortedRecords
            ``parts``, ``paths``, ``records``, ``checksum``; also in ``target/manifest.json``.

        Raises
        ------
        RecordsError
            For files that are not there, not readable or not of whole records, a target that is not
            empty, not shared or has no room, a disk that is full: what is finished stays and is
            taken up by the next call.

        Notes
        -----
        Records with equal keys stay in the order of the input. Every worker reads its share of the
        input in runs, sorts them, and keeps what its memory has room for; the rest is spilled to
        its local directory. Splitters are placed by exact counts; then every worker makes its parts
        ``part-00000`` … of pieces of all runs. A part appears when it is complete. Where a worker
        is lost in the middle the others read what it had read, and make the parts that are missing.
        A call that takes up parts reads all of the input again. On storage that is neither local
        nor an object store a part has its name while it is written.

        Every byte is read once, and moves to another worker once at most; what is spilled is
        written and read once more. O(workers) tasks, O(parts · runs) pieces of at most 64 MiB each
        of both, all planned on the scheduler: some hundred gigabytes are sorted, not petabytes.

        References
        ----------
        C. Cérin, J.-C. Dubacq, J.-L. Roch (2006), Methods for Partitioning Data to Improve Parallel
        Execution Time for Sorting on Heterogeneous Clusters; sortbenchmark.org for the format.
        """
        from fpmdask.apps.records import client

        request = {
            "workers": self.workers,
            "measuring": {**arguments.measuring(None, None, None, None), "policy": None},
            "records": client.request(sources, target, distribution, checksum),
        }
        return self._sync(self._sort_records, request)

    async def _sort_records(self, request: dict[str, Any]) -> SortedRecords:
        from fpmdask.apps.records.client import SortedRecords

        manifest, _ = await self._follow("records", request)
        return SortedRecords.from_manifest(manifest)

    def _sort(self, x: Any, descending: bool, *, index: bool) -> Any:
        from fpmdask.apps.sort.client import arrays
        from fpmdask.runtime.client import conversions

        if not isinstance(descending, bool | np.bool_):
            raise PartitionError(f"descending = {descending!r}; give True or False")
        back, x = conversions.like(x), conversions.as_keys(x)
        arrays.check(x)
        plain = partial(arrays.sort, descending=bool(descending), index=index)
        sorting = conversions.converted(back, plain)
        request, tuning = self._request(), config.tuning()
        return self._sync(sorting, self.client, x, request, self._follow, tuning)

    def _request(self) -> dict[str, Any]:
        measuring = arguments.measuring(None, None, None, None)
        measuring["policy"] = None  # follows from the number of keys
        return {
            "workers": self.workers,
            "recovery": config.seconds("recovery"),
            "measuring": measuring,
        }

    @_a_call
    def map_blocks(
        self,
        func: Callable[..., Any],
        x: da.Array | np.ndarray,
        /,
        *more: Any,
        axis: int = 0,
        dtype: Any = None,
        meta: Any = None,
        chunks: Any = None,
        drop_axis: int | Sequence[int] | None = None,
        new_axis: int | Sequence[int] | None = None,
        implementations: Mapping[str, Callable[..., Any]] | None = None,
        distribution: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Call a function on blocks of arrays, each worker on as many rows as it is fast.

        Parameters
        ----------
        func
            Called with blocks, as by `dask.array.map_blocks`. It must return the same whatever the
            blocks are: how many rows each has follows from the workers' speeds. It must not keep
            anything from one call to the next: a worker opens it once. One that takes
            ``block_info`` or ``block_id`` gets the chunks of `x`, and only their places follow.
        x
            The array whose rows are shared out; along all other axes a block has all of it. No
            other one has more dimensions, or is longer where it has length 1. Its chunks are of its
            meta's type: masked ones under a meta that is a NumPy array are refused.
        *more
            Further arguments. Dask arrays of the same length on that axis are cut alike, others
            (of length 1 there, or fewer dimensions), and NumPy ones, are given to every call as a
            whole. Lists and dictionaries of collections are refused: compute these.
        axis
            Along which blocks are cut; func does not get it. An argument of func's own with this
            name (as of `numpy.cumsum`), or that of another one here, is bound to it by
            `functools.partial`.
        dtype, meta, drop_axis, new_axis
            As for `dask.array.map_blocks`; `drop_axis` must not have `axis`.
        chunks
            As there; the chunks of the result are those that func really returns.
        implementations
            Name of a worker resource → function that workers with that resource call instead; each
            has a model of its own.
        distribution
            Worker name → rows, or an earlier report; or the lengths of the blocks
            (``y.chunks[axis]``), each computed where most of it is held.
        **kwargs
            Given to func; no collections. Those that dask.array takes for itself (name, token,
            enforce_ndim) are refused.

        Returns
        -------
        dask.array.Array
            Complete and in the workers' memory, each block on the worker that computed it.

        Raises
        ------
        PartitionError
            For arguments that cannot be, before anything is computed, and where results do not fit
            into the workers' memory.
        Exception
            What func raises, with a note that names the worker and the rows.

        Notes
        -----
        Nothing is measured apart: the first, short calls on each worker are a part of the result,
        and the times of all calls tell what it gets next (guided self-scheduling with speed
        functions). Without losses func is called exactly once for each row. Later calls of the same
        function begin with what is known. Rows stay where they are held as far as the balance
        allows: O(workers · log rows) calls, or as many as there are chunks where neighbours are
        held by different workers.

        Examples
        --------
        >>> import dask.array as da
        >>> from distributed import Client
        >>> with Client(n_workers=2, threads_per_worker=1, processes=False,
        ...             dashboard_address=":0") as client:
        ...     x = da.arange(1000, chunks=100)
        ...     y = Balancer(client).map_blocks(lambda block: block * 2, x)
        ...     total = int(y.sum().compute())
        >>> total
        999000
        """
        from fpmdask.apps.blocks.client import arrays
        from fpmdask.runtime.client import conversions

        x = conversions.as_array(x)
        options = {
            "dtype": dtype,
            "meta": meta,
            "chunks": chunks,
            "drop_axis": drop_axis,
            "new_axis": new_axis,
        }
        mapped = arrays.checked(func, x, more, axis, implementations, distribution, options, kwargs)
        return self._sync(arrays.map_blocks, self.client, mapped, self._request(), self._follow)

    @_a_call
    def map_partitions(
        self,
        func: Callable[..., Any],
        ddf: dd.DataFrame | pd.DataFrame,
        /,
        *args: Any,
        meta: Any = None,
        implementations: Mapping[str, Callable[..., Any]] | None = None,
        distribution: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Call a function on rows of frames, each worker on as many as it is fast.

        Parameters
        ----------
        func
            Called with pandas frames, as by `dask.dataframe.map_partitions`. It must return the
            same however many rows it gets at once. One that takes ``partition_info``, or that
            returns no frame, series or index (a call on a few rows that are made up, in this
            process, tells), gets the partitions of `ddf`. A reduction that returns a frame or
            series takes ``partition_info`` to get them, too.
        ddf
            The frame, or series, whose rows are shared out.
        *args
            Further arguments. Frames of as many rows are cut alike; one of a single partition is
            given to every call as a whole.
        meta
            As for `dask.dataframe.map_partitions`. Without it, func is called in this process; with
            a frame it is not.
        implementations, distribution
            As for `map_blocks`.
        **kwargs
            Given to func; no collections. Those that Dask takes for itself (enforce_metadata,
            align_dataframes, transform_divisions, clear_divisions, parent_meta, required_columns,
            token) are refused.

        Returns
        -------
        dask.dataframe.DataFrame or Series
            Complete and in the workers' memory, each partition on the worker that computed it.
            Divisions are known where those of `ddf` are, the results' indices are in order, and no
            cut falls between equal labels (`distribution` says where cuts are).

        Raises
        ------
        PartitionError
            For arguments that cannot be, before anything is computed.
        Exception
            What func raises, with a note that names the worker and the rows.

        Notes
        -----
        As for `map_blocks`. Partitions move by Dask's own transfers, whole ones.

        Examples
        --------
        >>> import pandas as pd
        >>> from distributed import Client
        >>> frame = pd.DataFrame({"x": range(1000)})
        >>> with Client(n_workers=2, threads_per_worker=1, processes=False,
        ...             dashboard_address=":0") as client:
        ...     found = Balancer(client).map_partitions(lambda part: part * 2, frame)
        ...     total = int(found.x.sum().compute())
        >>> total
        999000
        """
        from fpmdask.apps.blocks.client import frames

        mapped = frames.checked(func, ddf, args, meta, implementations, distribution, kwargs)
        return self._sync(frames.map_partitions, self.client, mapped, self._request(), self._follow)

    @_a_call
    def rebalance(
        self,
        *collections: Any,
        kernel: Callable[..., Any] | None = None,
        distribution: Any = None,
        seconds: Mapping[str, float] | None = None,
        weights: Any = None,
        groups: Any = None,
        name: str | None = None,
    ) -> Any:
        """Place the same rows so that a synchronous program on them finishes together.

        What leaves data where it is (`xgboost.dask`, `lightgbm.dask`, one all-reduce a step) takes
        as long as its slowest worker: here each gets the rows that it is fast for.

        Parameters
        ----------
        *collections
            Dask arrays, dataframes and series with the same rows; lazy ones are persisted by this
            client. NumPy, Zarr, xarray and pandas ones, too; what is in this process is sent to the
            workers, and cannot be made again there once the call has returned.
        kernel
            A small piece of the program, called on workers with some rows of each collection
            (``lambda x, y: xgboost.train(params, xgboost.DMatrix(x, y), 2)``), which it must not
            change. It is timed there by DFPA, on a worker's own rows, over again where it is timed
            with more than there are.
        distribution
            Worker name → rows, as `partition` has it, or an earlier report, whose sums of weights
            are taken where there are `weights`.
        seconds
            Worker name → what its last iteration took with the rows that it holds now.
        weights
            One number >= 0 per row, a NumPy or dask array or a series: units are sums of weights
            (nonzeros of a row, say), also those of `distribution`.
        groups
            One id per row, equal ones contiguous: the rows of a group stay in one partition.
        name
            What models know the kernel by, in the place of its own name and code: they hold
            although the code changes.

        Returns
        -------
        One collection, or a tuple of as many as were given
            The same rows in the same order, persisted: one partition or a few per worker, each
            on its worker, those of all collections alike; more where the chunks of several workers
            took turns, as what can stays where it is. Dtypes are kept, the index, too, and
            divisions that are known, unless rows move and a cut falls between equal index values
            or a partition's index is in no order.

        Raises
        ------
        PartitionError
            For arguments that cannot be, and where a share does not fit into a worker's memory;
            nothing has moved then.
        CoordinatorError
            If `distribution` or `seconds` names a worker that does not take part.
        Exception
            What the kernel raises, with a note that names the worker.

        Notes
        -----
        Rows stay where they are as far as the shares allow: chunks that stay whole are not copied,
        and none moves where the workers finish together within ``fpmdask.epsilon`` already: the
        collections are returned as they are, persisted. A worker that joins during a call gets rows
        at the next one. The report's `distribution` counts rows, also where units are sums of
        weights. `weights` and `groups` come to this client; with them, rows are cut at 65,536
        places and at edges of chunks at most. A chunk that is lost later is made again from the
        input.

        References
        ----------
        Lastovetsky and Reddy (2009), section 2.

        Examples
        --------
        >>> import dask.array as da
        >>> from distributed import Client
        >>> with Client(n_workers=2, threads_per_worker=1, processes=False,
        ...             dashboard_address=":0") as client:
        ...     x = da.arange(100, chunks=50).persist()
        ...     x2 = Balancer(client).rebalance(x, distribution={"0": 70, "1": 30})
        ...     same, rows = bool((x2 == da.arange(100)).all().compute()), sum(x2.chunks[0])
        >>> same, rows
        (True, 100)
        """
        from fpmdask.apps.rebalance import client

        asked = client.checked(collections, kernel, distribution, seconds, weights, groups, name)
        return self._sync(self._rebalance, client.rebalance, asked)

    async def _rebalance(self, rebalance: Callable[..., Awaitable[Any]], asked: Any) -> Any:
        measuring = arguments.measuring(None, None, None, None)
        request = {**self._request(), "measuring": measuring}
        found = await rebalance(self.client, asked, request, self._follow)
        return found if len(found) > 1 else found[0]

    @_a_call
    def stencil(
        self,
        update: Callable[..., Any],
        u0: Any,
        iterations: int,
        *,
        depth: Any = 1,
        boundary: Any = "reflect",
        args: Sequence[Any] = (),
        out: Any = None,
        save_every: int | None = None,
        tolerance: float | None = None,
        check_every: int = 10,
        memory: Any = None,
        prefetch: bool = True,
        checkpoint: Any = None,
        checkpoint_every: int | None = None,
        distribution: Any = "mheta",
        machine: Any = None,
    ) -> Any:
        """Iterate an update of every cell from its neighbours, each worker on as many rows as fast.

        Parameters
        ----------
        update
            ``update(block, *args)``, called with rows of u0 and `depth` cells of halo on both sides
            of every axis. It returns a NumPy array of the block's shape, whose halo is cut off, or
            of the shape without halo, and of the block's dtype. With several fields it gets and
            returns a tuple. What it makes of a cell must depend on its place in the block no more
            than `dask.array.map_overlap` allows. Blocks are read-only. It is called with some
            rows at a time, in as many threads as a worker has.
            `fpmdask.apps.stencil` has `jacobi`, `heat` and `gray_scott`.
        u0
            A NumPy, dask, Zarr or xarray array of numbers, of one or more dimensions, or a tuple of
            fields of one shape. Rows, along the first axis, are shared out. Of a Zarr array, also
            as `dask.array.from_zarr` returns it, each worker reads the rows that it needs itself,
            straight into their place: all workers must reach it by the same path.
        iterations
            How many, >= 0.
        depth
            Cells of halo, >= 0: for all axes, or a sequence or mapping of them.
        boundary
            What is beyond the ends, as for `dask.array.overlap.overlap`: "reflect", "periodic",
            "nearest", "none" or a number; for all axes, or a sequence or mapping of them.
        args
            Arrays of the shape of u0 which are given to update with a halo, too.
        out
            Where the result is written by the workers that have it, on storage that the client and
            all workers reach by the same path: a `zarr.Array` of the shape and dtype of u0 (a tuple
            of them for several fields), a `zarr.Group`, a path or an fsspec URL. In these, arrays
            that are not there are made: for several fields "field0", "field1", … in a group. Any
            chunks do; each is written once, by one worker. It must not be where u0 or args are read
            from.
        save_every
            Append a snapshot to `out` after every so many iterations, and one after the last; u0 is
            none. Arrays have one more axis, the first one, which gets as long as there are
            snapshots: those of earlier calls stay. The attribute ``"fpmdask.out"`` of an array has
            ``"iterations"``, the iteration of each complete snapshot, also after a failure. An
            array that has snapshots and no such attribute is refused, as are fields of which one
            has more snapshots than another: some would be lost.
        tolerance
            End when no cell changes by more than this, >= 0, in one iteration.
        check_every
            Iterations between two looks at that.
        memory
            Bytes that each worker may use for its rows (2e8, "200MB"), for all of them or by name.
            By default, and at most, what it has free. A worker that gets more rows than fit keeps
            them in its local directory, and streams blocks of them in each iteration.
        prefetch
            Whether such a worker reads the next block while it computes one. Blocks are half as
            large then.
        checkpoint
            A folder on storage that the client and all workers share, a path or an fsspec URL. The
            fields after every `checkpoint_every` iterations are kept there, with checksums, until
            there is a newer checkpoint; it is removed once the call has succeeded. When a worker is
            lost, and when the same call is made again after a failure, the iterations go on from
            there, with any workers and shares. It is the same call where u0 and args have the same
            names or values, update has the same code (of functions in other packages than its own:
            the same names) and all parameters that make the result are the same. What has changed
            in a Zarr array, constants of modules, what update finds by ``globals()``, and functions
            within objects of installed classes (`numpy.vectorize`, `numpy.frompyfunc`) are not
            seen: remove the folder then. A checkpoint of another call is left as it is; one that is
            damaged, or later than the snapshots in `out`, is not used. A warning names them, but
            for the latter.
        checkpoint_every
            Iterations from one checkpoint to the next.
        distribution
            Worker name → rows, or an earlier report; nothing is measured then. Or a rule: "even";
            "balanced", all compute equally long, whatever their memory; "in-core", the same within
            the workers' memory; "mheta", which is "balanced" where all rows are in core then, and
            otherwise the rows for which MHETA predicts the shortest iterations, see Notes.
        machine
            A `fpmdask.mheta.Machine`, the report of an earlier call, or its document (a mapping,
            JSON text or a path, see `Report.mheta`): nothing is measured, but for the computing of
            a few rows where a machine is all that there is. Its nodes are the workers that it
            names, or all workers in the order of their names.

        Returns
        -------
        dask.array.Array or tuple of it
            The fields, complete and in the workers' memory, one chunk per worker along the first
            axis: what iterated `dask.array.map_overlap` gives. With `out`, lazy arrays of the last
            iteration as it is stored there.

        Raises
        ------
        PartitionError
            For arguments that cannot be, where update returns other shapes or dtypes than it
            should, where the result does not fit into the workers' memory, and where the disk of
            a worker is full.
        OSError
            If `out` cannot be written to.
        StorageError
            If `checkpoint` cannot be read, or written to.
        Exception
            What update raises, with a note that names the worker.

        Notes
        -----
        Each worker keeps its rows, which an iteration replaces in place, and gets only the halo of
        its neighbours: for several iterations at once where messages cost more than computing some
        rows twice. The first iterations are made on shares by what a few rows have taken, or by
        what earlier calls of the same update have taught; what they take tells whether rows should
        move. By "mheta" they move again where iterations take 10 %, and three times their scatter,
        more or less than before, as where a worker slows down (three checks, about a second apart,
        tell), and one worker gets all rows where messages take longer than what others save.
        O(iterations · (rows / workers + halo)) per worker. The values do not depend on the shares
        where update makes the same of a cell in any block.

        A worker whose rows, and those of args, do not fit into its memory streams them from a file
        in its local directory, which takes as much disk as they do: in each iteration each row is
        read once and written once, past the page cache. `report.shares` has the ``"blocks"`` and
        the ``"io_seconds"``. Workers that can hold their rows keep them in memory.
        Without `out` the memory of the workers must hold the result once, which is checked before
        anything is computed. What update itself takes, and what Zarr does to decode some chunks,
        comes on top of `memory`.

        Where rows in proportion to speed would not leave every worker 20 % of its memory, and
        `distribution` is "mheta", an iteration of a sample of rows is instrumented first: every
        worker streams some 32 MiB, at most a quarter, of what would be its even share from disk, in
        three blocks, and tells what reading, writing, computing and messages take; how long each
        distribution would take follows from that (`fpmdask.mheta`). The rows of an update that
        raises for the sample, which has rows side by side that are no neighbours, are shared out by
        speed. Rows move if this saves more in the iterations to come than it takes (with a
        tolerance: in as many as were made), and again after iterations that take 10 %, and three
        times their scatter, more or less than predicted. `Balancer.report.mheta` says what was
        predicted and measured.

        A worker that joins in the middle computes a few rows, unless it is known how fast it is,
        and gets its share of rows where that saves more in the iterations to come than moving
        takes; not where `distribution` gives the rows. Where a worker is lost in the middle, the
        others start again from u0, or from `checkpoint`, with shares that are found anew.
        A chunk of the result that is lost afterwards is made again from u0 by all iterations on all
        rows in one task, which needs memory for all of them on one worker: keep what is precious
        elsewhere, too.

        Examples
        --------
        >>> import numpy as np
        >>> from distributed import Client
        >>> from fpmdask.apps.stencil import jacobi
        >>> with Client(n_workers=2, threads_per_worker=1, processes=False,
        ...             dashboard_address=":0") as client:
        ...     u = Balancer(client).stencil(jacobi, np.eye(4), 100)
        ...     mean = u.compute().mean()
        >>> round(float(mean), 6)
        0.25
        """
        from fpmdask.apps.stencil import client

        given = client.checked(
            update,
            u0,
            iterations,
            depth,
            boundary,
            args,
            tolerance,
            check_every,
            distribution,
            memory,
            prefetch,
            machine,
        )
        storage = client.checked_storage(out, save_every, checkpoint, checkpoint_every)
        request = self._request()
        return self._sync(client.stencil, self.client, given, storage, request, self._follow)

    @_a_call
    def run(self, app: str, spec: Mapping[str, Any] | None = None) -> Any:
        """Run an application of another package on the cluster.

        Parameters
        ----------
        app
            ``"module:attribute"`` of its `fpmdask.runtime.app.App`; the package must be installed
            on the scheduler and the workers.
        spec
            What the application is to do: plain data (numbers, strings, bytes, lists, dictionaries
            with strings for keys).

        Returns
        -------
        What the application returns, plain data; `report` has what it took.

        Raises
        ------
        CoordinatorError
            If the application is not found, cannot be imported, or refuses.
        PartitionError
            If the spec is no plain data, or the application refuses it.
        """
        if not isinstance(app, str) or not all(app.partition(":")):
            raise CoordinatorError(f"found the application {app!r}; give 'module:attribute'")
        if not isinstance(spec, Mapping | None):
            raise PartitionError(f"spec is a {type(spec).__name__}; give a mapping")
        spec = arguments.plain({} if spec is None else spec, "spec")
        measuring = arguments.measuring(None, None, None, None)
        return self._sync(self._run, app, {**self._request(), "measuring": measuring, "spec": spec})

    async def _run(self, app: str, request: dict[str, Any]) -> Any:
        await proxy.check(self.client, app, request)
        value, _ = await self._follow(app, request)
        return value

    @property
    def models(self) -> Any:
        """What the coordinator knows of the workers now.

        Returns
        -------
        Models
            A sequence of `fpmdask.runtime.known_models.KnownModel`, one for each worker and kernel,
            also of workers that are gone; a table and their speed functions in notebooks.
            ``forget(kernel=None, worker=None)`` has the coordinator forget some. With an
            asynchronous client ``await balancer.models``.
        """
        return self._sync(self._models)

    async def _models(self) -> Models:
        return Models(await models.fetched(self.client), self._forget_models)

    def _forget_models(self, kernel: str | None, worker: str | None) -> Any:
        return self._sync(models.forgotten, self.client, kernel, worker)

    # ---- life

    def close(self) -> None:
        """Forget the client; the coordinator stays for others."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Balancer {self.client.status} {self.client!r}>"

    def _repr_html_(self) -> str:
        last = "no run yet" if self.report is None else self.report._repr_html_()
        return f"<h4>fpmdask.Balancer</h4>{last}"

    # ---- helpers

    def _sync(self, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        if self._closed:
            raise CoordinatorError("this balancer is closed; make a new fpmdask.Balancer(client)")
        if self.client.status != "running":
            raise CoordinatorError(
                f"the client is {self.client.status}; connect a new distributed.Client and balancer"
            )
        proxy.check_not_inside()
        # what is no method that runs something, as `models`, has no progress to tell of
        name = _METHOD.get()
        call = CallProgress(name, self.progress if name else False)
        over = threading.Event()
        with contextlib.nullcontext() if self.client.asynchronous else proxy.seceded():
            try:
                return self.client.sync(self._installed_run, over, call, function, *args)
            except KeyboardInterrupt:
                # it is cancelled, but not over: the next call is not to meet what it tidies up
                over.wait(INTERRUPTED_SECONDS)
                raise

    @letting_go
    async def _installed_run(
        self,
        over: threading.Event,
        call: CallProgress,
        function: Callable[..., Awaitable[Any]],
        *args: Any,
    ) -> Any:
        try:
            async with call:
                if not self._installed:  # made with an asynchronous client, and not awaited
                    await self._install()
                try:
                    return await function(*args)
                except NoWorkersError as error:
                    traceback.clear_frames(error.__traceback__)
                    if not await proxy.first_worker(self.client, tell):
                        raise
                return await function(*args)
        finally:
            over.set()

    async def _follow(
        self,
        app: str,
        spec: dict[str, Any],
        asked: proxy.Asked | None = None,
        heard: proxy.Progress | None = None,
    ) -> tuple[Any, Report]:
        """Run an app; `asked` does what it wants of this client, `heard` is called with events."""

        def hear(event: Mapping[str, Any]) -> None:
            if heard is not None:
                heard(event)
            tell(event)

        declared = None
        with contextlib.suppress(CoordinatorError):  # its package need not be installed here
            declared = messages(find(app, APPS))
        value, raw = await proxy.follow(self.client, app, spec, hear, asked, declared)
        report = build(raw, app)
        self._warn_of_workers(report.left_out)
        if not raw.get("only_holds"):
            self.report = report
        return value, report

    def _warn_of_workers(self, left_out: Mapping[str, str]) -> None:
        """Warn of workers that never take part, once per client: a report is easily overlooked."""
        known = _WARNED.setdefault(self.client, Recent(MOST_WARNED))
        for name, reason in left_out.items():
            if without_fpmdask(reason) and name not in known:
                known.add(name)
                warnings.warn(f"worker {name} takes no part: it {reason}", stacklevel=2)
