"""What every model is: an immutable value with seconds as a function of units."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Self, overload

import numpy as np
from numpy.typing import NDArray

from fpmdask.errors import PartitionError
from fpmdask.models.arrays import FloatArray, domain, unwrap

Values = NDArray[Any] | Sequence[float]

FORMAT = "fpmdask.model"
VERSION = 1

KINDS: dict[str, type["Value"]] = {}


class Value:
    """An immutable value made of its dataclass fields: comparable, picklable, storable as JSON.

    Notes
    -----
    Subclasses are frozen dataclasses (``eq=False``) that set `kind`. Their `init` fields are
    arrays, numbers, strings or tuples of these, and are the constructor's arguments in order;
    whatever else they hold is derived from these and is never compared, pickled or stored.
    """

    __slots__ = ()
    kind: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.kind:
            KINDS[cls.kind] = cls

    def _state(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}  # type: ignore[arg-type]  # every subclass is a dataclass

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        mine, theirs = self._state().values(), other._state().values()
        return all(_same(a, b) for a, b in zip(mine, theirs, strict=True))

    def __hash__(self) -> int:
        parts = (v.tobytes() if isinstance(v, np.ndarray) else v for v in self._state().values())
        return hash((type(self), *parts))

    def __reduce__(self) -> tuple[Any, ...]:
        # Rebuilding from the arguments keeps the arrays read-only in the other process.
        return type(self), tuple(self._state().values())

    def to_json(self) -> dict[str, Any]:
        """Return the model as a JSON-compatible dictionary with a format and its version.

        Returns
        -------
        dict
            Plain numbers, strings and lists; infinities are the strings ``"inf"`` and ``"-inf"``,
            so that the text is standard JSON.

        Raises
        ------
        PartitionError
            If the model holds a function that has no name (see `AnalyticModel`).
        """
        head = {"format": FORMAT, "version": VERSION, "kind": self.kind}
        return head | {name: _encode(value) for name, value in self._state().items()}

    @classmethod
    def _restore(cls, state: Mapping[str, Any]) -> Self:
        names = [f.name for f in fields(cls) if f.init]  # type: ignore[arg-type]  # as in _state
        missing = [name for name in names if name not in state]
        if missing:
            raise PartitionError(
                f"a stored model of kind {cls.kind!r} needs {', '.join(names)}; "
                f"{', '.join(missing)} not found: the file is damaged, measure again"
            )
        return cls(*(_decode(state[name]) for name in names))


class Model(Value, ABC):
    """Seconds as a function of units for one worker that runs one kernel.

    Notes
    -----
    `time`, `speed` and `units_within` take a number and return a float, or an array of any shape
    and return an array of that shape. Negative and NaN arguments are refused, ``inf`` is allowed.
    A new kind of model implements `_time` and `_units_within` on float64 arrays.
    """

    __slots__ = ()

    @abstractmethod
    def _time(self, units: FloatArray) -> FloatArray: ...

    @abstractmethod
    def _units_within(self, seconds: FloatArray) -> FloatArray: ...

    @abstractmethod
    def _speed(self, units: FloatArray) -> FloatArray: ...

    @overload
    def time(self, units: float) -> float: ...
    @overload
    def time(self, units: Values) -> FloatArray: ...
    def time(self, units: float | Values) -> float | FloatArray:
        """Return the seconds that `units` units take.

        Parameters
        ----------
        units : float or array_like
            Units, from 0 to ``inf``.

        Returns
        -------
        float or ndarray
            Seconds.

        Raises
        ------
        PartitionError
            If a value is negative, NaN or not a number.
        """
        x = domain(units, "units")
        return unwrap(self._time(x), x)

    @overload
    def speed(self, units: float) -> float: ...
    @overload
    def speed(self, units: Values) -> FloatArray: ...
    def speed(self, units: float | Values) -> float | FloatArray:
        """Return the speed at `units` units, ``units / time(units)``.

        Parameters
        ----------
        units : float or array_like
            Units, from 0 (the limit from above is returned) to ``inf``.

        Returns
        -------
        float or ndarray
            Units per second.

        Raises
        ------
        PartitionError
            If a value is negative, NaN or not a number.
        """
        x = domain(units, "units")
        return unwrap(self._speed(x), x)

    @overload
    def units_within(self, seconds: float) -> float: ...
    @overload
    def units_within(self, seconds: Values) -> FloatArray: ...
    def units_within(self, seconds: float | Values) -> float | FloatArray:
        """Return the largest real number of units whose time is at most `seconds`.

        Parameters
        ----------
        seconds : float or array_like
            Seconds, from 0 to ``inf``.

        Returns
        -------
        float or ndarray
            Units; 0 where no positive number of units is fast enough, ``inf`` where any is.

        Raises
        ------
        PartitionError
            If a value is negative, NaN or not a number.
        """
        t = domain(seconds, "seconds")
        return unwrap(self._units_within(t), t)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    return bool(a == b)


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_encode(item) for item in value.tolist()]
    if isinstance(value, tuple | list):
        return [_encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise PartitionError(
        f"{value!r} cannot be stored as JSON; use a named complexity such as 'nlogn'"
    )


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    if isinstance(value, str) and value in ("inf", "-inf"):
        return float(value)
    return value
