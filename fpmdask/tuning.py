"""Thresholds of the runtime and of the applications: one frozen value that is passed in.

The coordinator reads that of a cluster from the scheduler's configuration, ``fpmdask.tuning``, and
its plugin takes it to the workers; what a client decides itself follows from the client's. A
mapping of groups names only what differs from the defaults::

    dask.config.set({"fpmdask.tuning": {"sort": {"few-keys": 0}, "matmul": {"panel-depth": 256}}})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

from fpmdask.errors import PartitionError

Number = TypeVar("Number", int, float)

SETTING = "fpmdask.tuning"
# Numbers beyond are no thresholds, nor what messages carry.
MOST = 1 << 62


def _positive(default: Number) -> Number:
    """Return a field that must not be 0."""
    found: Number = field(default=default, metadata={"positive": True})
    return found


@dataclass(frozen=True)
class _Group:
    """Thresholds that belong together: finite numbers >= 0, whole ones where the default is."""

    def __post_init__(self) -> None:
        for one in fields(self):
            object.__setattr__(self, one.name, _checked(self, one, getattr(self, one.name)))

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> Self:
        """Return a group by the values that differ from the defaults; ``-`` in names is ``_``.

        Raises
        ------
        PartitionError
            For unknown names, and values that are not allowed.
        """
        return cls(**_named(data, cls, _path(cls)))

    def to_json(self) -> dict[str, Any]:
        """Return plain data: the values that differ from the defaults."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {one.name: found[one.name] for one in fields(self) if found[one.name] != one.default}


def _path(of: type) -> str:
    """Return the name of a group's setting."""
    return f"{SETTING}.{of.__name__.removesuffix('Tuning').lower()}"


def _checked(group: _Group, one: Any, value: Any) -> int | float:
    """Return a field's value as its own type."""
    whole, positive = isinstance(one.default, int), bool(one.metadata.get("positive"))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and abs(value) <= MOST and value >= 0 and not (positive and value == 0):
        if not whole:
            return float(value)
        if value == int(value):
            return int(value)
    raise PartitionError(
        f"{_path(type(group))}.{_spelt(one.name)} = {value!r}; give "
        f"{'a whole' if whole else 'a finite'} number {'> 0' if positive else '>= 0'}, such as "
        f"{one.default!r}"
    )


def _spelt(name: str) -> str:
    """Return a name as settings spell it."""
    return name.replace("_", "-")


def _named(data: Any, cls: Any, path: str) -> dict[str, Any]:
    """Return values by the names of a class's fields."""
    allowed = [one.name for one in fields(cls)]
    if not isinstance(data, Mapping):
        raise PartitionError(
            f"{path} = {data!r}; give a mapping of some of {', '.join(map(_spelt, allowed))}"
        )
    found = {}
    for given, value in data.items():
        name = str(given).replace("-", "_")
        if name not in allowed:
            from difflib import get_close_matches  # every worker imports this module

            near = get_close_matches(name, allowed, n=3, cutoff=0.0)
            raise PartitionError(
                f"found {path}.{given}, which there is not; the nearest names are "
                f"{', '.join(map(_spelt, near))}"
            )
        if name in found:
            raise PartitionError(f"found {path}.{_spelt(name)} twice, with - and with _; give one")
        found[name] = value
    return found


@dataclass(frozen=True)
class RuntimeTuning(_Group):
    """What all applications share."""

    # Seconds that the graph which makes a chunk may take from its client to the scheduler.
    graph_travel_seconds: float = 1.0
    # Seconds within which a worker that has just joined is prepared.
    join_seconds: float = 5.0
    # Seconds; a probe of a link that takes longer says no more than that somebody hangs.
    link_probe_seconds: float = 10.0
    # Whole seconds after which a peer that neither takes nor sends a byte is taken for gone.
    silent_peer_seconds: int = _positive(120)
    # Seconds of a TLS handshake, at both ends of which may be busy workers.
    handshake_seconds: float = _positive(30.0)
    # Seconds for which scratch memory of a run that is over is kept for the next one: touching
    # memory for the first time can cost more than the measurement that needs it.
    scratch_seconds: float = 10.0
    # Seconds for which a pinned task's worker may be silent however short `hang` is: Dask's workers
    # tell of themselves every few seconds where they are many.
    stage_patience_seconds: float = 10.0
    # Times that a stage of pinned tasks, or a run's steps, is begun; what is disturbed so often is
    # given up.
    most_attempts: int = _positive(20)
    # Seconds before it is begun again: the scheduler may not know yet who is gone. Then seconds in
    # which a worker may come where a run has none left, or those that are left cannot go on without
    # another one: nannies start one again within seconds.
    retry_seconds: float = 0.2
    rejoin_seconds: float = 10.0
    # A step that takes a worker so many times as long as the others is not waited for.
    overdue: float = 10.0
    # Seconds of some worker's own steps from which on a run teaches. Half of what it took counts.
    learned_least_seconds: float = 0.05
    # Seconds within which a worker says whether it finds `out`: one that hangs does not hold the
    # others up, since it looks before it writes anything.
    out_answer_seconds: float = 30.0


@dataclass(frozen=True)
class MatmulTuning(_Group):
    """What only products use."""

    # Bytes of A and B from which on the links between the workers are measured.
    probed_nbytes: int = 16 << 20
    # Bytes of the blocks of rows that NumPy inputs are cut into, about.
    block_nbytes: int = _positive(64 << 20)
    # Depth of a panel of K, in lines; BLAS gains nothing beyond.
    panel_depth: int = _positive(512)
    # Rows per call of BLAS. Against 1024, 512 lose up to 3 %, 256 up to 6 %, 64 up to 20 %; a call
    # at depth 128 and width 8192 takes 40 ms on a core of 50 Gflop/s.
    blas_band_rows: int = _positive(1024)
    # Operations per call where NumPy multiplies (about 1 Gop/s): rows need no blocking there.
    numpy_band_operations: float = _positive(5e7)
    # Seconds of the timed kernel, at least and at most. One update at the depth of `panel_depth` of
    # the kernel takes about a seventieth of the product, or is repeated until a worker's CPU-quota
    # periods (10 to 100 ms) do not dominate.
    timing_min_seconds: float = 0.06
    timing_budget_seconds: float = _positive(0.12)
    # Seconds of multiplying from which on a share teaches: less says more about noise.
    learned_least_seconds: float = 0.2
    # Operations of its own that a worker spends on a byte that it receives or sends: 0.7 and 1.2
    # CPU-s per GB, medians of forty products, at 33 Gflop/s. It comes out of the same quota as the
    # multiplication.
    receiving_operations: float = 24.0
    sending_operations: float = 40.0
    # Seconds between two messages that tell the coordinator how far a share is, at least.
    news_seconds: float = 0.1
    # Seconds that a worker must end earlier for lines to be stolen of its part.
    help_gain_seconds: float = 0.2
    # A worker of which nothing is heard for so many times as long as its shares should take hangs.
    overdue: float = 10.0
    # Seconds before a share that lacked chunks asks again, times the number of its starts.
    restart_seconds: float = 0.2
    # Times that a share which gets no further is started at least before that is an error.
    least_starts: int = _positive(10)
    # Seconds after which a worker that cannot publish its parts is asked again, and how often.
    publish_seconds: float = 0.5
    publish_tries: int = _positive(5)
    # Bytes of A and B from which on ranges of K are considered: what less moves does not matter.
    ranges_least_nbytes: int = 16 << 20
    # Bytes of all workers' sums that one adds up, unless all of them add up a part of C.
    sum_part_nbytes: int = _positive(16 << 20)


@dataclass(frozen=True)
class SortTuning(_Group):
    """What sorts of arrays and frames use; of records what is not in `RecordsTuning`."""

    # Keys per worker; with fewer it is not worth measuring anybody.
    few_keys: int = 1 << 17
    # Seconds of the timed kernel, at least and at most, where what the run itself takes is looked
    # at before most of it is shared out. CPU-quota periods are 10 ms and more: shorter timings say
    # little.
    timing_min_seconds: float = 0.04
    timing_budget_seconds: float = _positive(0.08)
    # Bytes of a block of a run: it and what is copied into it stay in the second cache of a core.
    block_nbytes: int = _positive(1 << 20)
    # Keys of all blocks together that stand for a run, if they are not longer than two blocks.
    block_samples: int = _positive(1 << 16)
    # A part is put in order bucket by bucket, which takes two thirds of what it takes at once. A
    # bucket has a slice of each block before the exchange: with fewer bytes, or more buckets of all
    # parts, these get so short that counting and sending them takes more than is gained.
    bucket_nbytes: int = _positive(8 << 20)
    most_buckets: int = _positive(256)
    # Bytes of the input in which what is lost of a result is looked for at once, about, or as much
    # as makes so many groups of its chunks.
    group_nbytes: int = _positive(256 << 20)
    most_groups: int = _positive(16)
    # Rows of a frame; fewer are sorted where they are.
    few_rows: int = 1 << 19
    # Different strings of a column that are numbered, and their bytes: these pass through the
    # client.
    most_distinct: int = 4096
    most_distinct_nbytes: int = 1 << 20
    # Keys that become row numbers at once: what is made of so few on the way stays in the cache.
    row_block: int = _positive(16_000)
    # Rows that are sorted and put in order at once, as a power of two: their columns stay in the
    # processor's cache.
    run_bits: int = _positive(19)


@dataclass(frozen=True)
class RecordsTuning(_Group):
    """What only sorts of files of records use."""

    # Records per worker; with fewer it is not worth measuring anybody.
    few_records: int = 1 << 15
    # Bytes of a part of the result, and of a sorted run of the input, at most; less where memory is
    # short, down to the least.
    part_most_nbytes: int = _positive(64 << 20)
    part_least_nbytes: int = _positive(1 << 20)


@dataclass(frozen=True)
class StencilTuning(_Group):
    """What only iterations with a halo use."""

    # Seconds of the first iterations that say how fast a worker is, before rows move. CPU-quota
    # periods are 10 ms and more: shorter timings say little.
    trial_seconds: float = 0.15
    # Seconds from one load check of the team, an all-reduce of some milliseconds, to the next;
    # after one, workers that have joined are taken in.
    load_check_seconds: float = 1.0
    # What an exchange of halos takes, where there was none so far: two messages of some
    # milliseconds of workers that have a fraction of a core. Where computing takes less, halos for
    # several iterations are exchanged at once from the first one on.
    exchange_seconds: float = 0.01
    # What it takes to move rows, however few: the team stops, and gets new buffers.
    move_seconds: float = 0.01
    # Most iterations between two exchanges of halos.
    most_every: int = _positive(64)
    # Bytes of the rows that an update is called with at once, about: they, and what it makes of
    # them, stay in a core's cache, and what it makes is memory that it has used before. Calls take
    # some 10 us more.
    band_nbytes: int = _positive(1 << 19)
    # Bytes of each worker's rows in the instrumented iteration, about, a quarter of them at most:
    # blocks of some MiB, as disks are read in; more takes longer than it tells.
    sample_nbytes: int = _positive(32 << 20)
    # Seconds between two messages that tell how many iterations are done, at least.
    news_seconds: float = 1.0


@dataclass(frozen=True)
class BlocksTuning(_Group):
    """What `map_blocks` and `map_partitions` use."""

    # Part of an even share in the first call of a worker of which nothing is known.
    probe_part: float = _positive(1 / 48)
    # A call has at most so many times the rows of the largest one before.
    growth: float = _positive(8.0)
    # Of its share until the end a worker gets this part at once: speeds vary.
    share_part: float = _positive(0.3)
    # Calls are no longer than need be, as memory may have a cliff: so many seconds, this part of
    # the run (by models of earlier runs, the other one), so many times the fixed cost of a call.
    call_seconds: float = _positive(0.12)
    call_part: float = _positive(1 / 16)
    call_part_known: float = _positive(1 / 8)
    call_fixed: float = 20.0
    # What would take less than so many times the fixed cost is not a call of its own, unless that
    # is more than this part of the whole run.
    least_fixed: float = 8.0
    least_fixed_part: float = 0.25
    # What takes less than this part of the whole run, or so many seconds, is not divided any more.
    least_part: float = 0.04
    least_seconds: float = 0.03
    # Sizes that were timed before a worker gets its next call ahead of the end of the one before.
    sure_sizes: int = _positive(2)
    # A size at which the speed falls below this part of a smaller size's is beyond a cliff.
    cliff: float = 0.5
    # Times below say little of a speed: a CPU quota has periods of 10 ms and more.
    short_seconds: float = 0.02
    # A call on rows of several chunks copies them; those of one chunk do where they take so long,
    # or so many times the fixed cost of a call.
    chunk_seconds: float = 0.05
    chunk_fixed: float = 8.0
    # Fewer rows than this part of a call are not left for a call of their own.
    left_part: float = 0.12
    # A cut is moved to an edge of a chunk within this part of a call's rows: nothing is copied.
    snap_part: float = 0.12
    # Orders that a worker has been given: the next one begins when one ends.
    calls_ahead: int = _positive(2)
    # Calls that take less together are one order, so many at most: each costs both sides a message.
    order_seconds: float = 0.1
    order_calls: int = _positive(64)
    # Seconds between two looks for calls that are overdue: that take so many times as long as they
    # should, while others have nothing to do; so many times longer after each worker given up.
    look_seconds: float = _positive(0.25)
    overdue: float = _positive(5.0)
    overdue_growth: float = _positive(4.0)
    # Rows in whose calls so many workers were lost are not tried again.
    most_deaths: int = _positive(3)


@dataclass(frozen=True)
class RebalanceTuning(_Group):
    """What only `rebalance` uses."""

    # Of a worker's free memory, what rows to be timed may take: the kernel needs some, too.
    timed_part: float = _positive(0.5)
    # A first, short round has an even share divided by this: an even one lasts as long as the
    # slowest worker needs, several times as long as one by the speeds that the short one finds.
    scout_divisor: int = _positive(16)
    # More chunks than this on one worker, some of them new, are joined where there is memory.
    few_chunks: int = _positive(4)


@dataclass(frozen=True)
class Tuning:
    """All thresholds, by what they belong to."""

    runtime: RuntimeTuning = field(default_factory=RuntimeTuning)
    matmul: MatmulTuning = field(default_factory=MatmulTuning)
    sort: SortTuning = field(default_factory=SortTuning)
    records: RecordsTuning = field(default_factory=RecordsTuning)
    stencil: StencilTuning = field(default_factory=StencilTuning)
    blocks: BlocksTuning = field(default_factory=BlocksTuning)
    rebalance: RebalanceTuning = field(default_factory=RebalanceTuning)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> Self:
        """Return the thresholds by the groups, and in them the values, that differ from defaults.

        Raises
        ------
        PartitionError
            For unknown names, and values that are not allowed.

        Examples
        --------
        >>> Tuning.from_mapping({"runtime": {"join-seconds": 1}}).runtime.join_seconds
        1.0
        >>> Tuning.from_mapping({"runtime": {"join-secs": 1}})
        Traceback (most recent call last):
            ...
        fpmdask.errors.PartitionError: found fpmdask.tuning.runtime.join-secs, which there is not; \
the nearest names are join-seconds, ...
        """
        groups: dict[str, Any] = {one.name: one.default_factory for one in fields(cls)}
        found = _named(data, cls, SETTING)
        return cls(**{name: groups[name].from_mapping(own) for name, own in found.items()})

    def to_json(self) -> dict[str, Any]:
        """Return plain data: the groups, and in them the values, that differ from the defaults.

        Examples
        --------
        >>> Tuning(runtime=RuntimeTuning(most_attempts=3)).to_json()
        {'runtime': {'most_attempts': 3}}
        """
        every = {one.name: getattr(self, one.name).to_json() for one in fields(self)}
        return {name: own for name, own in every.items() if own}


DEFAULT = Tuning()
