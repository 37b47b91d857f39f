"""Settings under ``fpmdask`` in dask.config; an argument beats configuration."""

from importlib import resources
from typing import Any

import dask
import yaml
from dask.utils import parse_timedelta

DEFAULTS: dict[str, Any] = yaml.safe_load(
    resources.files(__package__).joinpath("fpmdask.yaml").read_text(encoding="utf-8")
)
dask.config.update_defaults(DEFAULTS)


def setting(name: str, override: Any = None) -> Any:
    """Return ``override``, or the configured value of ``fpmdask.<name>`` where it is None."""
    return dask.config.get(f"fpmdask.{name}") if override is None else override


def seconds(name: str, override: Any = None) -> float:
    """Return a duration setting in seconds (``"30s"``, ``"2 min"``, 12.5)."""
    return float(parse_timedelta(setting(name, override), default="s"))


def timing_settings() -> dict[str, Any]:
    """Return the ``fpmdask.timing`` settings with Python's spelling of their names."""
    return {name.replace("-", "_"): value for name, value in setting("timing").items()}
