"""What is asked for: as plain data. What is sorted is `fpmdask.sorting.spec.SortSpec`."""

from collections.abc import Mapping
from typing import Any, NotRequired

from fpmdask.runtime.wire import Request


class SortRequest(Request):
    """Sort, or share rows out before a sort.

    ``sort`` is a `SortSpec`, ``coming`` bytes of keys that are not in memory yet, ``payload``
    whether rows travel with their keys.
    """

    sort: Mapping[str, Any]
    coming: NotRequired[int]
    payload: NotRequired[bool]
