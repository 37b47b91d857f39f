"""Where each worker's part of C lies, and how large it is when moving A and B costs time too."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fpmdask.apps.matmul.communication_cost import (
    Held,
    Holders,
    all_bytes,
    held_bytes,
    homes,
    moved_bytes,
    nearer,
)
from fpmdask.apps.matmul.plan import PANELS_HELD, MatmulSpec, deepest_panel
from fpmdask.apps.matmul.tile import Tile
from fpmdask.apps.matmul.tiling import LAYOUTS, tiled
from fpmdask.apps.matmul.user_layout import spread
from fpmdask.models import PiecewiseLinearModel
from fpmdask.partition import proportional
from fpmdask.partition.validate import FloatArray
from fpmdask.tuning import DEFAULT, MatmulTuning

# Only workers as different as this may gain from parts that are no rectangles.
UNEQUAL = 3.0

# Of a link's rate, what a worker's panels reach: it pauses where panels do not follow each other.
LINK_USE = 0.8
# The layout decides what is moved, that decides the areas, and these the layout.
_ROUNDS = 6
_GAIN = 0.99
# Where no speed is known: so many bytes fewer are worth a layout with more cuts.
_FEWER = 0.95

# Worker -> seconds per byte that it receives and sends.
Links = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Placement:
    """A layout and what is expected of it.

    Parameters
    ----------
    layout : {"rows", "columns", "nrrp", "given"}
        What was taken.
    tiles : dict of str to list of Tile
        Worker -> its tiles of C, none for a worker without.
    nbytes : int
        That all workers together receive.
    seconds : float
        Expected of the slowest worker, moving included; NaN where no speed is known.
    moving : dict of str to float
        Worker -> what it receives and sends, in operations that cost about as much.
    why : str
        What decided.
    """

    layout: str
    tiles: dict[str, list[Tile]]
    nbytes: int
    seconds: float
    moving: dict[str, float]
    why: str = "asked for"

    def __str__(self) -> str:
        expected = "" if math.isnan(self.seconds) else f"{self.seconds:.3g} s, "
        return f"{self.layout} ({expected}{self.nbytes / 1e6:.4g} MB to move)"


def placed(
    spec: MatmulSpec,
    layout: str,
    rows: Mapping[str, int],
    *,
    bounds: Mapping[str, float] | None = None,
    rates: Mapping[str, float] | None = None,
    holders: Holders | None = None,
    links: Links | None = None,
    moving: Mapping[str, PiecewiseLinearModel] | None = None,
    lazy: Collection[str] = (),
    in_order: bool = False,
    tuning: MatmulTuning = DEFAULT.matmul,
) -> Placement:
    """Return the layout whose slowest worker is expected to finish first.

    Parameters
    ----------
    spec : MatmulSpec
        The product.
    layout : {"auto", "rows", "columns", "nrrp"}
        "auto" compares the others; "nrrp" only where shares differ by more than 3 : 1. Rows where
        the panels of others do not fit into memory.
    rows : mapping of str to int
        Worker -> rows of C of full width: its share of the work where nothing has to move.
    bounds : mapping of str to float, optional
        Worker -> most rows of full width that it has memory for.
    rates : mapping of str to float, optional
        Worker -> operations per second; without them the areas are those of `rows`.
    holders : mapping, optional
        Key of a chunk of A or B -> workers that hold it.
    links : mapping, optional
        Worker -> seconds per byte that it receives and sends, whatever its CPU does meanwhile.
    moving : mapping, optional
        Worker -> its seconds by `Placement.moving`; of others, the speed of `rates` tells.
    lazy : collection of str, optional
        Names of inputs that are in nobody's memory: the `homes` of their chunks will read them.
    in_order : bool, optional
        Keep the order of `rows` from top to bottom, whatever the workers hold.
    tuning : MatmulTuning, optional
        What moving costs, and how deep panels are.

    Returns
    -------
    Placement
        Workers in the order of `rows`, without tiles those without rows. Rectangles are taken only
        where they are expected to be faster than rows by a hundredth, and parts without a corner
        only where they are faster than rectangles by another; where no speed is known, where a
        twentieth fewer bytes move.

    Notes
    -----
    A worker's time is that of its part of C plus that of the bytes of A and B which it receives and
    sends, both out of its own CPU; or that of its link, which is hidden behind the multiplication
    unless it takes longer. The areas that make all times equal follow from the bytes of the layout,
    and the layout from the areas; the best of six turns is taken. With a rectangle's area its bytes
    grow as the square root. O(p² + chunk rows · p).

    Parts are ordered, where that moves less, by where the rows of A that their workers hold are in
    the middle, and columns of parts by the columns of B: what an earlier product left in place is
    not moved.
    """
    busy = {worker: share for worker, share in rows.items() if share}
    limits = np.array([(bounds or {}).get(worker, math.inf) for worker in busy])
    inputs = _Inputs(spec, list(busy), holders or {}, frozenset(lazy))
    tried = [kind for kind in LAYOUTS[1:] if layout in ("auto", kind)]
    if layout == "auto" and max(busy.values()) <= UNEQUAL * min(busy.values()):
        tried.remove("nrrp")

    def settled(kind: str) -> Placement:
        return _settled(
            spec, kind, busy, limits, inputs, rates, links, moving or {}, in_order, tuning
        )

    most = dict(zip(busy, limits, strict=True))
    fitting = [
        found
        for found in map(settled, tried)
        if found.layout == "rows" or _fits(spec, found.tiles, most, tuning.panel_depth)
    ]
    if not fitting:
        why = f"the panels of {layout} do not fit into the workers' memory"
        fitting = [replace(settled("rows"), why=why)]
    found = _fastest(fitting)
    return replace(found, tiles={worker: found.tiles.get(worker, []) for worker in rows})


def _fits(
    spec: MatmulSpec,
    tiles: Mapping[str, Sequence[Tile]],
    limits: Mapping[str, float],
    panel_depth: int,
) -> bool:
    """Tell whether tiles need no more memory, with their panels, than as many rows as fit.

    A long tile needs more for its panels of A than rows of the same area do.
    """
    width = spec.shape[2]
    lines = PANELS_HELD * deepest_panel(spec, len(tiles), panel_depth)
    return all(
        sum(tile.area + lines * (tile.height + tile.width) for tile in own)
        <= limits[worker] * width + lines * (limits[worker] + width)
        for worker, own in tiles.items()
    )


def as_given(
    spec: MatmulSpec, zones: Mapping[str, Sequence[Sequence[int]]], workers: Iterable[str]
) -> Placement:
    """Return the placement of zones of blocks; arguments and errors as for `spread`."""
    tiles = spread(spec, zones, workers)
    held = held_bytes(spec, list(tiles), {})
    received, _ = moved_bytes(spec, list(tiles.values()), held)
    return Placement("given", tiles, int(received.sum()), math.nan, dict.fromkeys(tiles, 0.0))


def _fastest(tried: Sequence[Placement]) -> Placement:
    """Return the placement expected to end first; a later one must be better by a hundredth."""
    found = tried[0]
    for other in tried[1:]:
        if math.isnan(found.seconds):
            better = other.nbytes < _FEWER * found.nbytes
        else:
            better = other.seconds < _GAIN * found.seconds
        found = other if better else found
    if len(tried) == 1:
        return found
    against = ", ".join(str(other) for other in tried if other is not found)
    return replace(found, why=f"{found} against {against}")


def _settled(
    spec: MatmulSpec,
    layout: str,
    rows: dict[str, int],
    limits: FloatArray,
    inputs: "_Inputs",
    rates: Mapping[str, float] | None,
    links: Links | None,
    known: Mapping[str, PiecewiseLinearModel],
    in_order: bool,
    tuning: MatmulTuning,
) -> Placement:
    names = list(rows)
    speeds = np.array([(rates or {}).get(name, math.nan) for name in names])
    receiving, sending = np.array([(links or {}).get(name, (0.0, 0.0)) for name in names]).T
    per_row = operations(spec, 1) / speeds
    best: Placement | None = None
    held: Held | None = None
    for _ in range(_ROUNDS):
        tiles = tiled(spec, layout, rows, limits)
        if held is None:  # later turns move little of what would be read elsewhere
            held = inputs.held(tiles)
        received, sent = moved_bytes(spec, list(tiles.values()), held)
        if not in_order and layout != "nrrp":
            ordered = nearer(spec, tiles, held)
            instead = moved_bytes(spec, list(ordered.values()), held)
            if instead[0].sum() < received.sum():
                tiles, (received, sent) = ordered, instead
        moved = received * tuning.receiving_operations + sent * tuning.sending_operations
        moving = _moving_seconds(moved, dict(zip(names, speeds, strict=True)), known)
        shares = np.array(list(rows.values()), dtype=np.float64)
        arriving = received * receiving / LINK_USE
        # behind a slow link a chunk leaves its owner once, to be relayed
        leaving = np.minimum(sent, all_bytes(spec, held)) * sending
        times = np.maximum(np.maximum(shares * per_row + moving, arriving), leaving)
        seconds = float(times.max())
        if best is None or seconds < best.seconds:
            carried = dict(zip(names, moved.tolist(), strict=True))
            best = Placement(layout, tiles, int(received.sum()), seconds, carried)
        if math.isnan(seconds) or not moving.any():
            break
        levelled = _levelled(spec.shape[0], shares, per_row, moving, arriving, limits)
        if levelled == list(rows.values()):
            break
        rows = dict(zip(names, levelled, strict=True))
    assert best is not None
    return best


def _moving_seconds(
    moved: FloatArray, speeds: Mapping[str, float], known: Mapping[str, PiecewiseLinearModel]
) -> FloatArray:
    """Return the seconds that each worker spends on what it receives and sends."""
    return np.array(
        [
            float(known[name].time(operations))
            if operations and name in known
            else operations / speed
            for operations, (name, speed) in zip(moved.tolist(), speeds.items(), strict=True)
        ]
    )


@dataclass(frozen=True)
class _Inputs:
    """What the workers hold, or will hold of what is not in memory yet."""

    spec: MatmulSpec
    workers: Sequence[str]
    holders: Holders
    lazy: frozenset[str]

    @cached_property
    def _now(self) -> Held:
        return held_bytes(self.spec, self.workers, self.holders)

    def held(self, tiles: Mapping[str, Sequence[Tile]]) -> Held:
        """Return the bytes per line once lazy inputs have been read for these tiles."""
        if not self.lazy:
            return self._now
        read = {key: (worker,) for key, worker in homes(self.spec, tiles, self.lazy).items()}
        return held_bytes(self.spec, self.workers, {**self.holders, **read})


def operations(spec: MatmulSpec, rows: int) -> float:
    """Return the operations of so many rows of C of full width."""
    return _per_product(spec) * rows * spec.shape[1] * spec.shape[2]


def work_per_byte(spec: MatmulSpec, tuning: MatmulTuning = DEFAULT.matmul) -> float:
    """Return the products of two elements that a worker could make instead of moving a byte."""
    both_ways = tuning.receiving_operations + tuning.sending_operations
    return both_ways / 2 / _per_product(spec)


def _per_product(spec: MatmulSpec) -> float:
    return 8.0 if spec.dtype.kind == "c" else 2.0


def _levelled(
    rows: int,
    shares: FloatArray,
    per_row: FloatArray,
    moving: FloatArray,
    arriving: FloatArray,
    limits: FloatArray,
) -> list[int]:
    """Return the rows with which all finish together at some T.

    That is ``rows_i · per_row_i + moving_i = T``, or less where the bytes do not arrive by T.
    """

    def within(level: float) -> FloatArray:
        by_speed = (level - moving) / per_row
        with np.errstate(divide="ignore", invalid="ignore"):
            by_link = np.where(arriving > 0, shares * (level / arriving) ** 2, math.inf)
        clipped: FloatArray = np.clip(np.minimum(by_speed, by_link), 0.0, limits)
        return clipped

    low, high = 0.0, float((moving + rows * per_row + arriving).max())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle).sum() < rows else (low, middle)
    found = within(high)
    busy = found > 0
    made = np.zeros(found.size, dtype=np.int64)
    made[busy] = proportional(rows, found[busy], limits[busy])
    return [int(n) for n in made]


class ByElements(Mapping[str, PiecewiseLinearModel]):
    """Models of rows of `width` elements as ones of elements, each made when it is asked for."""

    def __init__(self, models: Mapping[str, PiecewiseLinearModel], width: int) -> None:
        self._models, self._width = models, width

    def __getitem__(self, worker: str) -> PiecewiseLinearModel:
        return by_elements(self._models[worker], self._width)

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


def by_elements(model: PiecewiseLinearModel, width: int) -> PiecewiseLinearModel:
    """Return a model of rows of `width` elements as one of elements.

    Examples
    --------
    >>> by_elements(PiecewiseLinearModel.from_points([10], [2.0]), 4).time(40)
    2.0
    """
    units, seconds = model.points
    return PiecewiseLinearModel.from_points(units * width, seconds)
