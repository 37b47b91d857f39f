"""Settings under ``fpmdask`` in dask.config; an argument beats configuration."""

from importlib import resources
from typing import Any

import dask
import yaml
from dask.utils import parse_timedelta

from fpmdask.errors import CoordinatorError
from fpmdask.tuning import Tuning

DEFAULTS: dict[str, Any] = yaml.safe_load(
    resources.files(__package__).joinpath("fpmdask.yaml").read_text(encoding="utf-8")
)
dask.config.update_defaults(DEFAULTS)


def setting(name: str, override: Any = None) -> Any:
    """Return ``override``, or the configured value of ``fpmdask.<name>`` where it is None."""
    if override is not None:
        return override
    try:
        return dask.config.get(f"fpmdask.{name}")
    except KeyError:
        # a `dask.config.set` that was entered before this module was loaded takes them away
        dask.config.update(dask.config.config, DEFAULTS, priority="old")
        return dask.config.get(f"fpmdask.{name}")


def seconds(name: str, override: Any = None) -> float:
    """Return a duration setting in seconds (``"30s"``, ``"2m"``, 12.5).

    Raises
    ------
    CoordinatorError
        If it is not a duration >= 0.
    """
    value = setting(name, override)
    try:
        duration = float(parse_timedelta(value, default="s"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CoordinatorError(
            f"{name} = {value!r}; give a duration such as '30s', '2m' or 12.5 (seconds)"
        ) from error
    if not duration >= 0:
        raise CoordinatorError(f"{name} = {value!r}; give a duration >= 0, such as '30s'")
    return duration


def tuning() -> Tuning:
    """Return the thresholds of this process: the scheduler's are those of the cluster's runs.

    Raises
    ------
    PartitionError
        For unknown names, and values that are not allowed.
    """
    return Tuning.from_mapping(setting("tuning"))


def timing_settings() -> dict[str, Any]:
    """Return the ``fpmdask.timing`` settings with Python's spelling of their names."""
    return {name.replace("-", "_"): value for name, value in setting("timing").items()}
