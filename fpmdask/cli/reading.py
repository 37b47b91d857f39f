"""Files that commands read: models by worker name, and the logs of runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpmdask.errors import FpmdaskError

if TYPE_CHECKING:
    from fpmdask.models import Model
    from fpmdask.runtime.report import Report

RUN = "fpmdask.run"


def read_json(path: Path) -> Any:
    """Return what a JSON file holds."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # nested too deeply
        raise FpmdaskError(f"{path} is not JSON ({error}); save it again") from error


def read_run(path: Path) -> Report:
    """Return the report in the log of a run."""
    return _report(path, read_json(path))


def read_models(path: Path) -> dict[str, Model]:
    """Return worker name → model, from such a JSON object or the log of a run."""
    from fpmdask.models import Model, from_json

    data = read_json(path)
    if isinstance(data, Mapping) and data.get("format") == RUN:
        models: dict[str, Model] = dict(_report(path, data).models)
        if not models:
            raise FpmdaskError(
                f"the run in {path} measured nothing, so that its log holds no models; use the "
                "log of a run whose distribution was not given"
            )
        return models
    if not isinstance(data, Mapping) or "format" in data or not data:
        raise FpmdaskError(
            f"{path} holds no models by worker; it must be an object of worker name to what "
            "model.to_json() returned, or the log of a run"
        )
    found: dict[str, Model] = {}
    for name, stored in data.items():
        try:
            model = from_json(stored)
        except (FpmdaskError, RecursionError) as error:
            raise FpmdaskError(f"the model of {name} in {path}: {error}") from error
        if not isinstance(model, Model):
            raise FpmdaskError(
                f"the model of {name} in {path} is a {type(model).__name__}, of two parameters; "
                "store its slice at one width: surface.slice(width).to_json()"
            )
        found[name] = model
    return found


def _report(path: Path, data: Any) -> Report:
    from fpmdask.runtime.report import Report

    try:
        return Report.from_json(data)
    except FpmdaskError as error:
        raise type(error)(f"{path}: {error}") from error
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise FpmdaskError(
            f"{path} is damaged ({type(error).__name__}: {error}); save it again with "
            "balancer.report.save()"
        ) from error
