"""What commands print: JSON for programs, aligned columns for people."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

ANSWER_IS_NO = 3

Function = TypeVar("Function", bound=Callable[..., Any])


def json_option(function: Function) -> Function:
    """Add ``--json`` to a command, as the argument ``as_json``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print JSON, and nothing else on stdout."
    )(function)


def print_json(data: Any) -> None:
    """Print standard JSON; infinities are the strings "inf" and "-inf"."""
    click.echo(json.dumps(_plain(data), indent=1, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def print_columns(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print aligned columns: numbers to the right, the rest to the left.

    Examples
    --------
    >>> print_columns(("worker", "units"), [("alpha", 1200), ("b", 7)])
    worker  units
    alpha    1200
    b           7
    """
    cells = [[*map(_cell, row)] for row in rows]
    widths = [max(len(row[i]) for row in [list(header), *cells]) for i in range(len(header))]
    right = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(header))]
    for row in [list(header), *cells]:
        line = "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        )
        click.echo(line.rstrip())


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
