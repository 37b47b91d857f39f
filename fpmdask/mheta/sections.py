"""What a program is made of: arrays, stages, messages and sections."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fpmdask.errors import PartitionError
from fpmdask.mheta import checks
from fpmdask.models import Model

PATTERNS = ("none", "nearest_neighbour", "pipeline", "reduction_tree", "reduction_flat")


def set_fields(value: Any, **fields: Any) -> None:
    """Set fields of a frozen dataclass while it is being made."""
    for name, field in fields.items():
        object.__setattr__(value, name, field)


@dataclass(frozen=True, slots=True)
class Array:
    """An array whose rows are distributed over the nodes.

    Parameters
    ----------
    name : str
        By which `Stage.reads`, `Stage.writes` and `Communication.source` name it.
    row_bytes : int
        Bytes of one row, from 0 to 2**53 - 1.
    resident : bool
        A resident array stays in memory also where the others are out of core (vectors that are
        needed whole, or in every stage).

    Raises
    ------
    PartitionError
        If a field has a wrong type or value.

    Examples
    --------
    >>> Array("A", 32768)
    Array(name='A', row_bytes=32768, resident=False)
    """

    name: str
    row_bytes: int
    resident: bool = False

    def __post_init__(self) -> None:
        name = checks.word(self.name, "Array.name")
        set_fields(self, row_bytes=checks.nbytes(self.row_bytes, f"row_bytes of array {name!r}"))
        set_fields(self, resident=checks.flag(self.resident, f"resident of array {name!r}"))


@dataclass(frozen=True, slots=True)
class Stage:
    """One loop over the rows of a node: what it computes, reads and writes.

    Parameters
    ----------
    seconds_per_row : sequence of float, optional
        Seconds of computing per row, one number per node, at least 0.
    models : sequence of Model, optional
        In place of it: the time of a number of rows, one model per node. A stage that has
        neither computes nothing.
    reads, writes : sequence of str
        Names of the arrays that it reads and writes, once per iteration and row.
    prefetch : bool
        Whether a node that is out of core reads the next block while it computes.

    Raises
    ------
    PartitionError
        If a field has a wrong type or value, or both ways of computing are given.

    Examples
    --------
    >>> Stage([0.5, 0.25], reads=["A"], writes=["A"]).reads
    ('A',)
    """

    seconds_per_row: Sequence[float] | None = None
    models: Sequence[Model] | None = None
    reads: Sequence[str] = ()
    writes: Sequence[str] = ()
    prefetch: bool = False

    def __post_init__(self) -> None:
        if self.seconds_per_row is not None and self.models is not None:
            raise PartitionError(
                "a stage has both seconds_per_row and models; give the one that is known"
            )
        if self.seconds_per_row is not None:
            name = "seconds_per_row"
            found = checks.per_node(self.seconds_per_row, name)
            set_fields(self, seconds_per_row=tuple(_seconds(v, i) for i, v in enumerate(found)))
        if self.models is not None:
            models = checks.per_node(self.models, "models")
            for node, model in enumerate(models):
                if not isinstance(model, Model):
                    raise PartitionError(
                        f"models[{node}] (node {node}) is {model!r}; a model of fpmdask.models is "
                        "needed for every node"
                    )
            set_fields(self, models=models)
        set_fields(self, reads=checks.words(self.reads, "reads of a stage"))
        set_fields(self, writes=checks.words(self.writes, "writes of a stage"))
        set_fields(self, prefetch=checks.flag(self.prefetch, "prefetch of a stage"))

    @property
    def nodes(self) -> int | None:
        """For how many nodes the stage has figures; None if it computes nothing."""
        figures = self.models if self.seconds_per_row is None else self.seconds_per_row
        return None if figures is None else len(figures)


@dataclass(frozen=True, slots=True)
class Communication:
    """The messages of a section.

    Parameters
    ----------
    pattern : str
        ``"none"``; ``"nearest_neighbour"``: a halo exchange after all tiles; ``"pipeline"``: from
        each rank to the next in every tile; ``"reduction_tree"`` or ``"reduction_flat"``: an
        all-reduce after all tiles, binomial or by rank 0.
    message_bytes : float
        Bytes of one message, at least 0.
    source : str, optional
        The array that a message is read from: where it is out of core the sender reads the
        message from disk first.

    Raises
    ------
    PartitionError
        If a field has a wrong type or value.
    """

    pattern: str = "none"
    message_bytes: float = 0
    source: str | None = None

    def __post_init__(self) -> None:
        checks.one_of(self.pattern, PATTERNS, "the pattern of a communication")
        found = checks.figure(self.message_bytes, "message_bytes of a communication")
        set_fields(self, message_bytes=int(found) if found.is_integer() else found)
        if self.source is not None:
            checks.word(self.source, "source of a communication")


@dataclass(frozen=True, slots=True)
class Section:
    """A parallel section: in each tile its stages in order, and messages as the pattern says.

    Parameters
    ----------
    stages : sequence of Stage
        In order; may be empty where a section only communicates.
    tiles : int
        Into how many parts each row is cut, at least 1; each has 1/tiles of a row's work and bytes.
    communication : Communication
        None by default.

    Raises
    ------
    PartitionError
        If a field has a wrong type or value.
    """

    stages: Sequence[Stage] = ()
    tiles: int = 1
    communication: Communication = Communication()

    def __post_init__(self) -> None:
        stages = checks.sequence(self.stages, "stages of a section", "Stage")
        for i, stage in enumerate(stages):
            if not isinstance(stage, Stage):
                raise PartitionError(f"stages[{i}] of a section is {stage!r}; a Stage is needed")
        set_fields(self, stages=stages, tiles=checks.count(self.tiles, "tiles of a section"))
        if not isinstance(self.communication, Communication):
            raise PartitionError(
                f"communication of a section is {self.communication!r}; a Communication is needed"
            )


def _seconds(value: Any, node: int) -> float:
    return checks.figure(value, f"seconds_per_row[{node}] (node {node})")
