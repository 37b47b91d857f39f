"""What a program is to MHETA, and programs as plain data for JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from fpmdask.errors import PartitionError
from fpmdask.mheta import checks
from fpmdask.mheta.sections import Array, Communication, Section, Stage, set_fields
from fpmdask.models import Model


@dataclass(frozen=True, slots=True)
class Program:
    """An iterative program: what one iteration does, in figures of the nodes it runs on.

    Parameters
    ----------
    sections : sequence of Section
        In order, at least one.
    arrays : sequence of Array
        Every array that a stage or a message of the program names.
    fixed_bytes : int
        Memory that every node with rows needs whatever their number.

    Raises
    ------
    PartitionError
        If a field has a wrong type or value, a name is unknown or occurs twice, or stages have
        figures for different numbers of nodes.

    Examples
    --------
    >>> stage = Stage([0.01, 0.02], reads=["A"], writes=["A"])
    >>> halo = Communication("nearest_neighbour", message_bytes=8000)
    >>> program = Program([Section([stage], communication=halo)], [Array("A", 8000)])
    >>> program.nodes, Program.from_dict(program.to_dict()) == program
    (2, True)
    """

    sections: Sequence[Section]
    arrays: Sequence[Array] = ()
    fixed_bytes: int = 0

    def __post_init__(self) -> None:
        sections = checks.sequence(self.sections, "sections of a program", "Section")
        arrays = checks.sequence(self.arrays, "arrays of a program", "Array")
        for i, section in enumerate(sections):
            if not isinstance(section, Section):
                raise PartitionError(f"sections[{i}] is {section!r}; a Section is needed")
        for i, array in enumerate(arrays):
            if not isinstance(array, Array):
                raise PartitionError(f"arrays[{i}] is {array!r}; an Array is needed")
        if not sections:
            raise PartitionError("sections is empty; a program needs at least one section")
        checks.twice([array.name for array in arrays], "arrays of a program")
        fixed = checks.nbytes(self.fixed_bytes, "fixed_bytes of a program")
        set_fields(self, sections=sections, arrays=arrays, fixed_bytes=fixed)
        self._check_names()
        self._check_nodes()

    @property
    def nodes(self) -> int | None:
        """For how many nodes it has figures; None if no stage computes."""
        counts = [stage.nodes for section in self.sections for stage in section.stages]
        return next((n for n in counts if n is not None), None)

    def _check_names(self) -> None:
        known = {array.name for array in self.arrays}
        for i, section in enumerate(self.sections):
            used = [(f"stages[{j}].reads", s.reads) for j, s in enumerate(section.stages)]
            used += [(f"stages[{j}].writes", s.writes) for j, s in enumerate(section.stages)]
            source = section.communication.source
            used.append(("communication.source", () if source is None else (source,)))
            for where, names in used:
                for name in names:
                    if name not in known:
                        raise PartitionError(
                            f"sections[{i}].{where} names the unknown array {name!r}; known are "
                            f"{', '.join(sorted(known)) or 'none: give arrays'}"
                        )

    def _check_nodes(self) -> None:
        for i, section in enumerate(self.sections):
            for j, stage in enumerate(section.stages):
                if stage.nodes not in (None, self.nodes):
                    raise PartitionError(
                        f"sections[{i}].stages[{j}] has figures for {stage.nodes} nodes, an "
                        f"earlier stage for {self.nodes}; give every stage one figure per node"
                    )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the program that a mapping of plain data describes, as `to_dict` writes it.

        Parameters
        ----------
        data : mapping
            ``sections``, ``arrays`` and ``fixed_bytes``; a missing key has its default.

        Raises
        ------
        PartitionError
            If a key is unknown, or a value is not allowed; the message names the place.
        """
        data = checks.mapping(data, "program", ("sections", "arrays", "fixed_bytes"))
        sections = checks.sequence(data.get("sections", ()), "program.sections", "mappings")
        arrays = checks.sequence(data.get("arrays", ()), "program.arrays", "mappings")
        return cls(
            tuple(_section(v, f"program.sections[{i}]") for i, v in enumerate(sections)),
            tuple(_array(v, f"program.arrays[{i}]") for i, v in enumerate(arrays)),
            data.get("fixed_bytes", 0),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the program as plain data for JSON: numbers, strings, lists and mappings."""
        found: dict[str, Any] = {
            "arrays": [_array_data(array) for array in self.arrays],
            "sections": [_section_data(section) for section in self.sections],
        }
        return found | ({"fixed_bytes": self.fixed_bytes} if self.fixed_bytes else {})


def _placed(where: str, make: Any, *arguments: Any) -> Any:
    """Return ``make(*arguments)``; an error says where in the document it was found."""
    try:
        return make(*arguments)
    except (OverflowError, PartitionError, RuntimeError) as error:
        raise PartitionError(f"{where}: {error}") from error


def _needed(data: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in data:
        raise PartitionError(f"{where} has no {key!r}, which is needed")
    return data[key]


def _array(data: Any, where: str) -> Array:
    data = checks.mapping(data, where, ("name", "row_bytes", "resident"))
    name, row_bytes = _needed(data, "name", where), _needed(data, "row_bytes", where)
    found: Array = _placed(where, Array, name, row_bytes, data.get("resident", False))
    return found


def _section(data: Any, where: str) -> Section:
    data = checks.mapping(data, where, ("stages", "tiles", "communication"))
    stages = checks.sequence(data.get("stages", ()), f"{where}.stages", "mappings")
    made = tuple(_stage(v, f"{where}.stages[{i}]") for i, v in enumerate(stages))
    place = f"{where}.communication"
    keys = ("pattern", "message_bytes", "source")
    words = checks.mapping(data.get("communication", {}), place, keys)
    communication = _placed(place, lambda: Communication(**words))
    found: Section = _placed(where, Section, made, data.get("tiles", 1), communication)
    return found


def _stage(data: Any, where: str) -> Stage:
    keys = ("seconds_per_row", "fpm", "reads", "writes", "prefetch")
    data = checks.mapping(data, where, keys)
    models = data.get("fpm")
    if models is not None:
        entries = checks.sequence(models, f"{where}.fpm", "one mapping per node")
        models = tuple(_model(v, f"{where}.fpm[{i}]") for i, v in enumerate(entries))
    rest = (data.get("reads", ()), data.get("writes", ()), data.get("prefetch", False))
    found: Stage = _placed(where, Stage, data.get("seconds_per_row"), models, *rest)
    return found


def _model(data: Any, where: str) -> Model:
    from fpmdask.models import PiecewiseLinearModel, from_json  # workers need none

    if isinstance(data, Mapping) and "format" in data:
        stored: Model = _placed(where, from_json, data)
        return stored
    data = checks.mapping(data, where, ("rows", "seconds"))
    rows, seconds = _needed(data, "rows", where), _needed(data, "seconds", where)
    try:
        return PiecewiseLinearModel.from_points(rows, seconds)
    except PartitionError as error:
        raise PartitionError(f"{where}: {str(error).replace('units', 'rows')}") from error
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:  # too large, too deep
        raise PartitionError(f"{where}: no numbers of rows and seconds ({error})") from error


def _array_data(array: Array) -> dict[str, Any]:
    found: dict[str, Any] = {"name": array.name, "row_bytes": array.row_bytes}
    return found | ({"resident": True} if array.resident else {})


def _section_data(section: Section) -> dict[str, Any]:
    messages = section.communication
    words: dict[str, Any] = {"pattern": messages.pattern}
    if messages.pattern != "none" or messages.message_bytes:
        words["message_bytes"] = messages.message_bytes
    if messages.source is not None:
        words["source"] = messages.source
    stages = [_stage_data(stage) for stage in section.stages]
    return {"tiles": section.tiles, "stages": stages, "communication": words}


def _stage_data(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if stage.seconds_per_row is not None:
        found["seconds_per_row"] = list(stage.seconds_per_row)
    if stage.models is not None:
        found["fpm"] = [_model_data(model) for model in stage.models]
    for key in ("reads", "writes"):
        if names := getattr(stage, key):
            found[key] = list(names)
    return found | ({"prefetch": True} if stage.prefetch else {})


def _model_data(model: Model) -> dict[str, Any]:
    """Return a model's points where each was measured once, what `to_json` returns otherwise."""
    from fpmdask.models import PiecewiseLinearModel

    if isinstance(model, PiecewiseLinearModel) and (model.counts == 1).all():
        units, seconds = model.points
        return {"rows": units.tolist(), "seconds": seconds.tolist()}
    return model.to_json()
