"""The task that every step of a run is: it finds worker code by its name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def run_step(step: str, order: Mapping[str, Any]) -> None:
    """Task: call worker code, ``"module:function"``, with an order."""
    module, _, function = step.partition(":")
    getattr(import_module(module), function)(order)
