"""What a run did, for people and for `fpmdask replay`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fpmdask.errors import CoordinatorError, FpmdaskError
from fpmdask.models import PiecewiseLinearModel, from_json

FORMAT = "fpmdask.run"
VERSION = 1
# The reason of shares that are even since what was measured is noise.
TOO_SHORT = "too short to time"


@dataclass(frozen=True)
class RoundReport:
    """One DFPA round: units and kernel seconds per worker name.

    ``seconds`` holds None where no answer came and inf where the size was too large. ``imbalance``
    is None for scouting and for a round that a worker left or joined. ``overhead_seconds`` is what
    the round took beyond its slowest kernel.
    """

    number: int
    units: Mapping[str, int]
    seconds: Mapping[str, float | None]
    imbalance: float | None
    wall_seconds: float
    overhead_seconds: float


@dataclass(frozen=True)
class Moved:
    """What it took to bring the rows of a frame to where their keys were sorted.

    ``received`` are (worker's address, bytes) of parts: rows that came, row numbers that went;
    ``nbytes`` those of the frame; ``dealing`` is the run that found out who should have how many of
    them, None where they are few; ``way`` says how rows moved, and why.
    """

    keys_seconds: float
    rows_seconds: float
    received: Sequence[tuple[str, int]]
    nbytes: int
    dealing: Report | None
    way: str


@dataclass(frozen=True)
class Report:
    """A run: who took part, what was measured, who did what, how long each phase took.

    Attributes
    ----------
    run, app : str
        The run's id and application.
    workers : tuple of str
        Names of the workers that have a share, in worker order.
    addresses : tuple of str
        Their addresses.
    distribution : numpy.ndarray
        Units per worker, int64: for `Balancer.partition` those of DFPA's best round, for
        `Balancer.matmul` the shares of the product in rows of C, or columns where it has few rows,
        or columns of A where these are shared out (layout "inner"),
        which are `proposal` unless they were given.
    proposal : numpy.ndarray
        Units per worker by all measurements together, see `fpmdask.partition.Outcome`.
    seconds : tuple of float or None
        Kernel seconds of `distribution`: measured, or by the models where it is the proposal; None
        where nothing was measured. The timed kernel is a part of the work that a unit is.
    uncertainty : tuple of float or None
        ± of each worker's last measured speed, relative: half the confidence interval that the
        timer computed; None where it could not, or nothing was measured.
    rounds : tuple of RoundReport
        DFPA's rounds.
    imbalance, reason
        How DFPA ended. Other reasons: "measured", once, which is enough; "known" from earlier runs;
        "given" by the caller; "as held", where nothing is handed over; "quickest alone", where one
        worker has all rows, as messages would take longer than others save; "few keys" and "too
        short to time", where all get the same.
    phases : dict
        Wall seconds of the run's phases; of a product ``prepare``, ``measure``, ``place`` (waiting
        for inputs that are being made again included), ``read`` (lazy inputs) and ``multiply``; of
        a sort ``prepare``, ``measure`` and ``sort``, of the rows of a frame before these ``keys``
        and after them ``rows``; of `Balancer.rebalance` ``prepare``, ``measure`` and ``move``; of a
        stencil ``prepare`` (loading included), ``measure``, ``iterate``, ``move`` and, if it
        writes, ``write``.
    shares : tuple of dict
        Per finished part: worker, units, seconds computing (those of a product in which it let its
        sending go first among them) and waiting, bytes received; empty for `Balancer.partition`;
        of a stencil ``iterations``, too. Of a stencil in memory, and of a sort that goes by what
        earlier ones took, ``planned_seconds``: to compute, and to sort.
    helps : tuple of dict
        What workers that were done took over from parts of others: as for `shares`, and `helps`,
        the name of the part's worker.
    layout : dict
        ``name`` of the layout of a product and ``why`` it was taken; ``transposed`` where it is one
        of the transpose of C, whose units are columns. Of a sort of a frame ``rows``: how these
        moved, and why. Empty for others.
    links : dict
        Worker name → seconds per byte that it receives and sends, where that was measured.
    predicted_seconds : float or None
        The makespan of the shares that the measurement predicts, without waiting for data.
    limits : dict
        Worker name → the most units that it had memory for, or that the caller allowed, where that
        is bounded.
    left_out : dict
        Worker name → why it did not take part to the end, also of one that was started again.
    models : dict
        Worker name → its `PiecewiseLinearModel`.
    log : dict
        Events and decisions, for `fpmdask replay`.
    mheta : dict
        Of a run that MHETA has distributed, plain data: ``version``, 1; ``why`` rows are where they
        are; ``workers``, the nodes; ``document``, program and machine with their figures
        (`fpmdask.mheta`), which may be a later call's ``machine``; ``spectrum``: the rows and
        predicted seconds along its path and the names of its corners; ``choices``: what was found
        after which iteration; ``phases``: for each distribution ``first`` and ``count`` of its
        iterations, ``rows``, and per iteration ``predicted`` and ``measured`` seconds of each node
        in compute, io, send, wait and receive (but for the first one, which writes to new memory);
        ``iterations``: the measured ones of each of the last iterations. Empty for other runs.
    """

    run: str
    app: str
    workers: tuple[str, ...]
    addresses: tuple[str, ...]
    distribution: np.ndarray
    proposal: np.ndarray
    seconds: tuple[float | None, ...]
    uncertainty: tuple[float | None, ...]
    rounds: tuple[RoundReport, ...]
    imbalance: float | None
    reason: str
    phases: Mapping[str, float]
    shares: tuple[Mapping[str, Any], ...]
    helps: tuple[Mapping[str, Any], ...]
    layout: Mapping[str, str]
    links: Mapping[str, Sequence[float]]
    predicted_seconds: float | None
    limits: Mapping[str, float]
    left_out: Mapping[str, str]
    models: Mapping[str, PiecewiseLinearModel]
    log: Mapping[str, Any] | None
    mheta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bytes_moved(self) -> int:
        """Bytes that workers received from other workers in the run's computation."""
        return sum(int(share.get("nbytes_received", 0)) for share in (*self.shares, *self.helps))

    @property
    def bytes_moved_per_byte(self) -> float | None:
        """Bytes moved per byte of a sort's input, None for other runs."""
        given = sum(int(share.get("nbytes_input", 0)) for share in self.shares)
        return self.bytes_moved / given if given else None

    @property
    def measured_seconds(self) -> float | None:
        """What the slowest worker's shares took, None where there are no shares."""
        return max((row[3] for row in self.table() if row[3] is not None), default=None)

    def with_rows(self, moved: Moved) -> Report:
        """Return the report of a sort of keys for the rows that these were made of."""
        nbytes = dict.fromkeys(self.workers, 0)
        names = dict(zip(self.addresses, self.workers, strict=True))
        for address, count in moved.received:
            name = names.get(address, address)
            nbytes[name] = nbytes.get(name, 0) + count
        keys = sum(share["nbytes_input"] for share in self.shares)
        shares = [
            {
                **share,
                "nbytes_received": share["nbytes_received"] + nbytes[share["worker"]],
                # of the rows, as many as it had keys
                "nbytes_input": share["nbytes_input"] * moved.nbytes // max(1, keys),
            }
            for share in self.shares
        ]
        phases = {"keys": moved.keys_seconds, **self.phases, "rows": moved.rows_seconds}
        whole = replace(self, phases=phases, shares=tuple(shares), layout={"rows": moved.way})
        if (dealing := moved.dealing) is None:
            return whole
        for phase, seconds in dealing.phases.items():
            phases[phase] += seconds
        phases["keys"] -= sum(dealing.phases.values())  # it was in the middle of these
        rounds, left_out = dealing.rounds + self.rounds, {**dealing.left_out, **self.left_out}
        return replace(whole, rounds=rounds, reason=dealing.reason, left_out=left_out)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.distribution, dtype=dtype)

    def __iter__(self) -> Iterator[int]:
        return iter(self.distribution.tolist())

    def __len__(self) -> int:
        return len(self.workers)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data, with format and version; inf is the string "inf"."""
        data: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        for name in self.__dataclass_fields__:
            data[name] = getattr(self, name)
        data["distribution"] = self.distribution.tolist()
        data["proposal"] = self.proposal.tolist()
        data["rounds"] = [vars(record) for record in self.rounds]
        data["models"] = {name: model.to_json() for name, model in self.models.items()}
        plain: dict[str, Any] = _encode(data)
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """Rebuild a report from `to_json`.

        Raises
        ------
        CoordinatorError
            If ``data`` is not a run's log, or of a newer version.
        """
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise CoordinatorError(f"found no {FORMAT} log; save one with `balancer.report.save()`")
        if data.get("version") != VERSION:
            raise CoordinatorError(
                f"found a {FORMAT} log of version {data.get('version')!r}; this fpmdask reads "
                f"version {VERSION}: use the fpmdask that wrote it"
            )
        fields = {k: v for k, v in _decode(data).items() if k in cls.__dataclass_fields__}
        # older logs lack these
        fields = {
            "proposal": fields.get("distribution"),
            "helps": (),
            "layout": {},
            "links": {},
            "limits": {},
            "uncertainty": [None] * len(fields.get("workers", ())),
            "mheta": {},
            **fields,
        }
        missing = cls.__dataclass_fields__.keys() - fields.keys()
        if missing:
            raise CoordinatorError(
                f"the file lacks the run's {', '.join(sorted(missing))}: it is not complete; save "
                "it again with `balancer.report.save()` or use another run's"
            )
        for name in ("distribution", "proposal"):
            fields[name] = np.array(fields[name], dtype=np.int64)
        fields["rounds"] = tuple(RoundReport(**record) for record in fields["rounds"])
        fields["models"] = {name: from_json(model) for name, model in fields["models"].items()}
        for name in ("workers", "addresses", "seconds", "uncertainty", "shares", "helps"):
            fields[name] = tuple(fields[name])
        return cls(**fields)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the log atomically as JSON."""
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        partial.write_text(json.dumps(self.to_json(), indent=1), encoding="utf-8")
        partial.replace(target)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """Read a log that `save` wrote.

        Raises
        ------
        CoordinatorError
            If the file is not one; the message names it.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls.from_json(data)
        except FpmdaskError as error:
            raise CoordinatorError(f"{path}: {error}") from error
        except json.JSONDecodeError as error:
            raise CoordinatorError(f"{path} is not JSON ({error}); save it again") from error
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise CoordinatorError(
                f"{path} is damaged ({type(error).__name__}: {error}); save it again with "
                "`balancer.report.save()`"
            ) from error

    def table(self) -> list[tuple[str, int, float | None, float | None, float | None]]:
        """Return (worker, units, kernel seconds, seconds of its share, ± of its speed) rows.

        None is what was not measured. Kernel seconds are of a part of the work: compare them with
        each other, not with those of the shares.
        """
        spent: dict[str, float] = {}
        for share in (*self.shares, *self.helps):
            spent[share["worker"]] = spent.get(share["worker"], 0.0) + share["seconds"]
        return [
            (name, int(units), seconds, spent.get(name), unsure)
            for name, units, seconds, unsure in zip(
                self.workers, self.distribution, self.seconds, self.uncertainty, strict=True
            )
        ]

    def __repr__(self) -> str:
        shares = ", ".join(f"{row[0]}: {row[1]}{_plus_minus(row[4])}" for row in self.table())
        balance = "" if self.imbalance is None else f", imbalance {self.imbalance:.3f}"
        out = f"; left out: {', '.join(self.left_out)}" if self.left_out else ""
        return f"<Report {self.run}: {shares}; {self._ending()}{balance}{out}>"

    def _ending(self) -> str:
        """Return the reason, and after how many rounds where there were any."""
        count = len(self.rounds)
        return (
            f"{self.reason} in {count} round{'' if count == 1 else 's'}" if count else self.reason
        )

    def explain(self) -> str:
        """Return why each worker got its share, what it took, and how near that is to the ideal."""
        from fpmdask.runtime.explain import as_text, explained

        return as_text(explained(self))

    def _repr_html_(self) -> str:
        from fpmdask.runtime.explain import as_html, explained

        return as_html(explained(self)) + self._mheta_html()

    def _mheta_html(self) -> str:
        if not self.mheta:
            return ""
        from fpmdask.mheta.run_html import run_html

        return run_html(self.mheta)


def _plus_minus(unsure: float | None) -> str:
    """Return the relative uncertainty of a measured speed in per cent of it, if it is known."""
    return "" if unsure is None else f" ±{unsure:.0%}"


def _encode(value: Any) -> Any:
    """Return JSON-safe data: JSON has no infinities."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    if isinstance(value, np.generic):
        return _encode(value.item())
    return value


def _decode(value: Any) -> Any:
    if value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, Mapping):
        return {key: _decode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_decode(item) for item in value]
    return value


def build(raw: Mapping[str, Any], app: str) -> Report:
    """Return the report of the plain data that the coordinator sends."""
    result = raw.get("result") or {}
    names = raw.get("names", {})
    order = list(result.get("distribution", {}))
    return Report(
        run=raw["run"],
        app=app,
        workers=tuple(names.get(address, address) for address in order),
        addresses=tuple(order),
        distribution=np.array([result["distribution"][a] for a in order], dtype=np.int64),
        proposal=np.array([result["proposal"][a] for a in order], dtype=np.int64),
        seconds=tuple(
            None if (spent := result["seconds"][address]) is None else float(spent)
            for address in order
        ),
        uncertainty=tuple(raw.get("uncertainty", {}).get(address) for address in order),
        rounds=tuple(
            RoundReport(
                number=record["number"],
                units=record["units"],
                seconds=record["kernel_seconds"],
                imbalance=record["imbalance"],
                wall_seconds=record["wall_seconds"],
                overhead_seconds=record["overhead_seconds"],
            )
            for record in raw["rounds"]
        ),
        imbalance=result.get("imbalance"),
        reason=result.get("reason", "given"),
        phases=raw["phases"],
        shares=tuple(raw.get("shares", ())),
        helps=tuple(raw.get("helps", ())),
        layout=raw.get("layout", {}),
        links=raw.get("links", {}),
        predicted_seconds=raw.get("predicted_seconds"),
        limits=raw.get("limits", {}),
        left_out=raw["left_out"],
        models={
            name: model
            for name, data in raw.get("models", {}).items()
            if isinstance(model := from_json(data), PiecewiseLinearModel)
        },
        log=raw["log"],
        mheta=_decode(raw.get("mheta", {})),  # messages have made tuples of lists
    )
