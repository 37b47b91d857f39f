"""What its processes tell each other."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from fpmdask.runtime.wire import Messages, Request, Step, StepAnswer, TeamOrder


class Matrix(TypedDict):
    keys: Sequence[Sequence[Any]]
    heights: Sequence[int]
    columns: int
    iterations: int


class PowerRequest(Request):
    spec: Matrix


class IterateOrder(TeamOrder):
    rows: Mapping[str, tuple[int, int]]
    chunks: Sequence[tuple[Any, int, int, Sequence[str]]]
    spec: Matrix


class Value(TypedDict):
    eigenvalue: float


class IterateAnswer(StepAnswer, Value):
    """What a step answers."""


ITERATE = Step("power_iteration.worker:iterate", IterateOrder, IterateAnswer)
MESSAGES = Messages(Value, (ITERATE,))
