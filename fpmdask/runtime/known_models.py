"""What the coordinator knows of workers, as values: for messages, tables and pictures. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fpmdask.errors import PartitionError
from fpmdask.runtime.identity import Fingerprint

if TYPE_CHECKING:
    from fpmdask.models import PiecewiseLinearModel

# Figures of `KnownMachine`: of its node, of the network, and of its computing.
NODE, SHARED, SECONDS_PER_ROW, MODEL = "node", "shared", "seconds_per_row", "model"
# Okabe and Ito's colours, without yellow.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#5E4FA2", "#7F7F7F")
# Kernels and workers that are drawn; the others are counted.
MOST_KERNELS, MOST_WORKERS = 16, 64
# Pixels of a picture, and of the margins for its axes.
WIDE, HIGH, LEFT, BELOW = 420, 180, 70, 32


@dataclass(frozen=True)
class OfWorker:
    """What was measured on one worker.

    Attributes
    ----------
    worker : str
        Name of the worker.
    kernel, implementation : str
    parameters : str
        Of the kernel, or of MHETA's program, as JSON with sorted keys.
    hardware : Fingerprint
        Of the worker when it was measured.
    connected : bool
        Whether that very process is connected; of others this is a prior, which one measurement
        may refute.
    """

    worker: str
    kernel: str
    implementation: str
    parameters: str
    hardware: Fingerprint
    connected: bool


@dataclass(frozen=True)
class KnownMachine(OfWorker):
    """One worker as a node of MHETA's machine, and how fast it computes one program.

    Attributes
    ----------
    figures : mapping
        ``node``: the fields of `fpmdask.mheta.Machine` that are per node, but memory; ``shared``:
        the others; ``seconds_per_row``, or ``model``, seconds by rows as of `Model.to_json`.
    """

    figures: Mapping[str, Any]


@dataclass(frozen=True)
class ModelFacts(OfWorker):
    """A `KnownModel` as messages carry it.

    Attributes
    ----------
    model : mapping
        What `Model.to_json` returns.
    half_widths : sequence
        (units, half-width) of points.
    """

    model: Mapping[str, Any]
    half_widths: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class KnownModel(OfWorker):
    """The model of one worker for one kernel.

    Attributes
    ----------
    model : PiecewiseLinearModel
        Seconds as a function of units.
    half_widths : mapping
        Units of a point → half-width of the confidence interval of its seconds, where several
        repetitions were timed.
    """

    model: PiecewiseLinearModel
    half_widths: Mapping[float, float] = field(default_factory=dict)

    @property
    def facts(self) -> ModelFacts:
        """The same as messages carry it."""
        named = {field.name: getattr(self, field.name) for field in fields(OfWorker)}
        half_widths = [*self.half_widths.items()]
        return ModelFacts(**named, model=self.model.to_json(), half_widths=half_widths)

    @classmethod
    def from_facts(cls, facts: ModelFacts) -> KnownModel:
        """Rebuild it from its `facts`."""
        from fpmdask.models import PiecewiseLinearModel, from_json  # workers need none

        model = from_json(facts.model)
        if not isinstance(model, PiecewiseLinearModel):
            raise PartitionError(f"found a model of kind {model.kind!r}; give a piecewise one")
        named = {field.name: getattr(facts, field.name) for field in fields(OfWorker)}
        half_widths = {float(units): float(half) for units, half in facts.half_widths}
        return cls(**named, model=model, half_widths=half_widths)


Known = KnownModel | KnownMachine


Of = TypeVar("Of", bound=OfWorker)


def by_kernel(known: Iterable[Of]) -> dict[tuple[str, str, str], list[Of]]:
    """Return (kernel, implementation, parameters) → its own, the same order for the same set."""
    found: dict[tuple[str, str, str], list[Of]] = {}
    for one in sorted(known, key=lambda k: (k.kernel, k.parameters, k.implementation, k.worker)):
        found.setdefault((one.kernel, one.implementation, one.parameters), []).append(one)
    return found


def cells(one: KnownModel) -> list[str]:
    """Return a row of the table: worker, points, units, speed there, and what it computes with."""
    units, seconds = one.model.points
    speed = units / seconds
    hardware = one.hardware
    cores = hardware.nthreads if hardware.quota is None else min(hardware.nthreads, hardware.quota)
    return [
        one.worker,
        str(units.size),
        _range(units),
        f"{_range(speed)}/s{_plus_minus(one)}",
        f"{cores:g} cores of {hardware.cpu}{'' if one.connected else ', not connected'}",
    ]


def _plus_minus(one: KnownModel) -> str:
    """Return the widest confidence interval of a model's points, relative; "" for none."""
    seconds = dict(zip(*(column.tolist() for column in one.model.points), strict=True))
    known = [half / seconds[units] for units, half in one.half_widths.items() if units in seconds]
    return f" ±{max(known):.0%}" if known else ""


HEADS = ["worker", "points", "units", "speed", "hardware"]


MACHINE_HEADS = ["worker", "computing, s per row", "reading, s per MB", "writing", "hardware"]


def machine_cells(one: KnownMachine) -> list[str]:
    """Return a row of the table of machines: worker, how fast it computes, its disk, hardware."""
    node, rows = one.figures.get(NODE, {}), one.figures.get(SECONDS_PER_ROW)
    computing = "a model" if rows is None and MODEL in one.figures else _figure(rows)
    disk = [_figure(node.get(f"{way}_s_per_byte"), 1e6) for way in ("read", "write")]
    return [one.worker, computing, *disk, one.hardware.cpu]


def _figure(value: Any, scale: float = 1.0) -> str:
    return f"{value * scale:.3g}" if isinstance(value, int | float) else "not known"


def as_text(known: Sequence[Known]) -> str:
    """Return a table per kernel, and one per program that MHETA knows machines for."""
    if not known:
        return NOTHING
    lines = []
    for (kernel, implementation, parameters), heads, rows in _tables(known):
        lines.append(f"{kernel} ({_named(implementation, parameters)})")
        table = [heads, *rows]
        wide = [max(len(row[n]) for row in table) for n in range(len(heads))]
        for row in table:
            padded = [cell.ljust(length) for cell, length in zip(row, wide, strict=True)]
            lines.append("  " + "  ".join(padded).rstrip())
    return "\n".join(lines)


def _tables(
    known: Iterable[Known],
) -> Iterator[tuple[tuple[str, str, str], list[str], list[list[str]]]]:
    """Yield (kernel, implementation, parameters), heads, rows."""
    known = list(known)
    for of, own in by_kernel(one for one in known if isinstance(one, KnownModel)).items():
        yield of, HEADS, [cells(one) for one in own]
    for of, machines in by_kernel(one for one in known if isinstance(one, KnownMachine)).items():
        yield of, MACHINE_HEADS, [machine_cells(one) for one in machines]


NOTHING = "nothing is known of any worker yet: run something that measures"


def as_html(known: Sequence[Known]) -> str:
    """Return a table and a picture of the speed functions per kernel; nothing to load."""
    if not known:
        return f"<div>{NOTHING}</div>"
    kernels = by_kernel(one for one in known if isinstance(one, KnownModel))
    parts = []
    for (kernel, implementation, parameters), own in list(kernels.items())[:MOST_KERNELS]:
        rows = []
        for n, one in enumerate(own[:MOST_WORKERS]):
            mark = f'<span style="color:{COLOURS[n % len(COLOURS)]}">■</span> '
            row = "".join(f"<td>{escape(cell)}</td>" for cell in cells(one))
            rows.append(f"<tr>{row.replace('<td>', f'<td>{mark}', 1)}</tr>")
        head = "".join(f"<th>{name}</th>" for name in HEADS)
        more = len(own) - len(rows)
        parts.append(
            f"<h4>{escape(kernel)}</h4>{escape(_named(implementation, parameters))}<br>"
            f"{speed_functions(own[:MOST_WORKERS])}<table><tr>{head}</tr>{''.join(rows)}</table>"
            + (f"and {more} more workers" if more else "")
        )
    if (more := len(kernels) - len(parts)) > 0:
        parts.append(f"and {more} more kernels")
    machines = [one for one in known if isinstance(one, KnownMachine)]
    for (kernel, implementation, parameters), heads, table in _tables(machines):
        lines = [
            "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
            for tag, row in [("th", heads), *(("td", row) for row in table[:MOST_WORKERS])]
        ]
        parts.append(
            f"<h4>{escape(kernel)}</h4>{escape(_named(implementation, parameters))}"
            f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
        )
    return f"<div>{''.join(parts)}</div>"


def speed_functions(known: Sequence[KnownModel]) -> str:
    """Return a picture of the speed of each worker as a function of its units, with its points.

    Points have the confidence intervals of their speeds where these are known.
    """
    most = max(float(one.model.points[0][-1]) for one in known)
    top = max(float((x / seconds).max()) for x, seconds in (one.model.points for one in known))

    def at(units: float, speed: float) -> tuple[str, str]:
        across, up = units / most * WIDE, speed / (1.05 * top) * HIGH
        return f"{LEFT + across:.1f}", f"{HIGH - up:.1f}"

    parts = [
        f'<path d="M{LEFT},0 V{HIGH} H{LEFT + WIDE}" fill="none" stroke="#333"/>',
        f'<text x="{LEFT + WIDE}" y="{HIGH + 14}" text-anchor="end">{most:.4g}</text>',
        f'<text x="{LEFT + WIDE // 2}" y="{HIGH + 28}" text-anchor="middle">units</text>',
        f'<text x="{LEFT - 4}" y="{at(0, top)[1]}" text-anchor="end">{top:.4g}</text>',
        f'<text x="{LEFT - 4}" y="{HIGH}" text-anchor="end">0</text>',
        f'<text x="12" y="{HIGH // 2}" transform="rotate(-90 12 {HIGH // 2})" '
        f'text-anchor="middle">units per second</text>',
    ]
    for n, one in enumerate(known):
        colour = COLOURS[n % len(COLOURS)]
        units, seconds = one.model.points
        drawn = np.unique(np.concatenate([np.linspace(most / 50, most, 50), units]))
        line = " ".join(",".join(at(x, float(one.model.speed(float(x))))) for x in drawn)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}"/>')
        for x, spent in zip(units.tolist(), seconds.tolist(), strict=True):
            cx, cy = at(x, x / spent)
            tip = f"{escape(one.worker)}: {x:g} units in {spent:.4g} s"
            if half := one.half_widths.get(x):
                tip += f" ±{half:.2g} s"
                low, high = (at(x, x / max(spent + way * half, x / top))[1] for way in (1, -1))
                parts.append(f'<path d="M{cx},{low} V{high}" stroke="{colour}" stroke-width="2"/>')
            parts.append(
                f'<circle cx="{cx}" cy="{cy}" r="3" fill="{colour}"><title>{tip}</title></circle>'
            )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDE + 8}" '
        f'height="{HIGH + BELOW}" role="img" aria-label="speed functions" '
        f'font-family="sans-serif" font-size="11">{"".join(parts)}</svg>'
    )


def _named(implementation: str, parameters: str) -> str:
    given = json.loads(parameters) if parameters else {}
    said = [f"{name}: {value}" for name, value in given.items()]
    return ", ".join([*filter(None, [implementation]), *said])


def _range(values: np.ndarray) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
