"""Golden traces: every decision of a seeded run of a pure algorithm, kept in JSON.

A heuristic reaches much the same answer by many ways, so that its answer alone does not tell
whether it does what its documentation says. Where there is no independent oracle, a trace of all
that it measured, chose and predicted is kept in ``golden.json`` beside the tests and compared.
The inputs come from `random.Random`, whose numbers never change.

Write the traces anew, after a change that is meant to change decisions::

    UPDATE_GOLDEN=1 pytest -k golden tests/partition tests/layout tests/models tests/mheta \
        tests/runtime

The commit that does so says why the decisions changed.
"""

import json
import math
import os
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np

# Digits that are kept of a float, and how far one may be off: what platforms round differently.
DIGITS, RELATIVE, ABSOLUTE = 9, 1e-8, 1e-12


class Golden:
    """The traces of one ``golden.json``."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "golden.json"
        self._kept = json.loads(self._path.read_text()) if self._path.exists() else {}

    def check(self, name: str, found: Any) -> None:
        """Compare a trace with the one that is kept by that name."""
        plain = _plain(found)
        if os.environ.get("UPDATE_GOLDEN"):
            self._kept[name] = plain
            lines = (f"{json.dumps(k)}: {_compact(self._kept[k])}" for k in sorted(self._kept))
            self._path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        different = _difference(self._kept[name], plain, name)
        assert different is None, different


def numbers(seed: int) -> random.Random:
    """Return the generator for the inputs of a trace; its `random` and `uniform` never change."""
    return random.Random(seed)


def whole(rng: random.Random, low: int, high: int) -> int:
    """Return a whole number from `low` to `high`."""
    return low + int(rng.random() * (high - low + 1))


def checksum(rows: np.ndarray) -> int:
    """Return a checksum of whole numbers, for traces of thousands of distributions."""
    return zlib.crc32(np.ascontiguousarray(rows, "<i8").tobytes())


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, floats with `DIGITS` digits."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return (
            int(value) if value == int(value) and abs(value) < 1e9 else float(f"{value:.{DIGITS}g}")
        )
    assert value is None or isinstance(value, bool | int | str), value
    return value


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _difference(kept: Any, found: Any, where: str) -> str | None:
    """Return where and how two plain values differ first; None if they do not."""
    if isinstance(kept, dict) and isinstance(found, dict) and kept.keys() == found.keys():
        pairs = [(f"{where}.{key}", kept[key], found[key]) for key in kept]
    elif isinstance(kept, list) and isinstance(found, list) and len(kept) == len(found):
        both = zip(kept, found, strict=True)
        pairs = [(f"{where}[{k}]", *pair) for k, pair in enumerate(both)]
    else:
        return None if _same(kept, found) else f"{where}: {kept} is kept, {found} was found"
    return next((d for at, a, b in pairs if (d := _difference(a, b, at)) is not None), None)


def _same(kept: Any, found: Any) -> bool:
    if isinstance(kept, float) or isinstance(found, float):
        numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (kept, found))
        return numeric and math.isclose(kept, found, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return bool(kept == found) and isinstance(kept, bool) == isinstance(found, bool)
