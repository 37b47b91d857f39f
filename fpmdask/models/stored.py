"""Models from JSON, of any kind (deserialization): importing this loads all kinds."""

from collections.abc import Mapping
from typing import Any

from fpmdask.errors import PartitionError
from fpmdask.models import akima as akima
from fpmdask.models import analytic as analytic
from fpmdask.models import constant as constant
from fpmdask.models import piecewise as piecewise
from fpmdask.models import surface as surface
from fpmdask.models import tabulated as tabulated
from fpmdask.models.base import FORMAT, KINDS, VERSION


def from_json(data: Mapping[str, Any]) -> Any:
    """Return the model that `to_json` described.

    Parameters
    ----------
    data : mapping
        What `to_json` returned, possibly after a trip through a file.

    Returns
    -------
    Model or SurfaceModel
        Equal to the stored one.

    Raises
    ------
    PartitionError
        If `data` is not a model, is of a newer version, or is incomplete.

    Examples
    --------
    >>> from fpmdask.models import ConstantModel
    >>> from_json(ConstantModel(3.0).to_json())
    ConstantModel(units_per_second=3.0)
    """
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, Mapping) else type(data).__name__
        raise PartitionError(
            f"not a stored model: format {found!r} found, {FORMAT!r} expected; "
            "pass what a model's to_json returned"
        )
    version = data.get("version")
    if type(version) is not int or version != VERSION:
        newer = type(version) is int and version > VERSION
        raise PartitionError(
            f"the stored model has version {version!r}, this fpmdask reads version {VERSION}; "
            + ("install a newer fpmdask or measure again" if newer else "measure again")
        )
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise PartitionError(
            f"unknown kind of model {kind!r}; known are {', '.join(sorted(KINDS))}"
        )
    return KINDS[kind]._restore(data)
