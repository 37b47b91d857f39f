"""Checks of fields and distributions: each error names field, node and what is allowed."""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fpmdask.errors import PartitionError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

# Whole numbers below this are exact in float64, and so is the floor of the quotient of two of them.
EXACT = 2**53
MOST_NODES = 2**20
# Predictions take time in proportion.
MOST_ITERATIONS = 10**6


def count(value: Any, name: str, least: int = 1, most: int = EXACT - 1) -> int:
    """Return a whole number from `least` to `most` as an int.

    Examples
    --------
    >>> count(4.0, "tiles")
    4
    """
    wanted = f"{name} must be a whole number of at least {least} and at most {_power(most)}"
    if not _is_number(value):
        raise PartitionError(f"{wanted}, got {value!r} of type {type(value).__name__}")
    if not least <= value <= most or value != math.floor(value):
        raise PartitionError(f"{wanted}, got {value!r}")
    return int(value)


def _power(number: int) -> str:
    """Return a number, as a power of two where it is a large one or just below."""
    if number < 2**24:
        return str(number)
    exponent = number.bit_length()
    return f"2**{exponent} - 1" if number == 2**exponent - 1 else f"2**{exponent - 1}"


def nbytes(value: Any, name: str) -> int:
    """Return a number of bytes, whole, at least 0 and below 2**53."""
    if not _is_number(value):
        raise PartitionError(
            f"{name} must be a whole number of bytes, got {value!r} of type {type(value).__name__}"
        )
    if not 0 <= value < EXACT or value != math.floor(value):
        raise PartitionError(
            f"{name} is {value!r}; a whole number of bytes from 0 to 2**53 - 1 is allowed, since "
            "block sizes are quotients of bytes, rounded down"
        )
    return int(value)


def figure(value: Any, name: str) -> float:
    """Return a finite number of at least 0 as a float."""
    if not _is_number(value):
        raise PartitionError(
            f"{name} must be a number, got {value!r} of type {type(value).__name__}"
        )
    if not 0 <= value < math.inf:
        raise PartitionError(f"{name} is {value!r}; a finite number of at least 0 is allowed")
    try:
        return float(value) + 0.0  # without a sign: -0.0 is 0.0
    except OverflowError:
        raise PartitionError(f"{name} is {value!r}; that is too large for a float") from None


def flag(value: Any, name: str) -> bool:
    """Return True or False, refusing everything else."""
    if not isinstance(value, bool | np.bool_):
        raise PartitionError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def word(value: Any, name: str) -> str:
    """Return a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise PartitionError(f"{name} must be a string that is not empty, got {value!r}")
    return value


def sequence(value: Any, name: str, what: str) -> tuple[Any, ...]:
    """Return a list, tuple or one-dimensional array as a tuple."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return tuple(value.tolist())
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise PartitionError(f"{name} must be a sequence of {what}, got {value!r}")
    return tuple(value)


def words(value: Any, name: str) -> tuple[str, ...]:
    """Return names, each of which occurs once."""
    found = tuple(
        word(item, f"{name}[{i}]") for i, item in enumerate(sequence(value, name, "array names"))
    )
    twice(found, name)
    return found


def twice(names: Sequence[str], where: str) -> None:
    """Refuse a name that occurs twice."""
    for i, name in enumerate(names):
        if name in names[:i]:
            raise PartitionError(f"{where} has {name!r} twice; give every array one name, once")


def one_of(value: Any, allowed: Sequence[str], name: str) -> str:
    """Return one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        raise PartitionError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")
    return value


def per_node(value: Any, name: str, nodes: int | None = None) -> tuple[Any, ...]:
    """Return one entry per node, of which there must be `nodes` if that is given."""
    found = sequence(value, name, "one number per node")
    if not found:
        raise PartitionError(f"{name} is empty; give one number per node")
    if nodes is not None and len(found) != nodes:
        raise PartitionError(f"{name} has {len(found)} entries for {nodes} nodes; give one each")
    return found


def mapping(value: Any, name: str, allowed: Sequence[str]) -> Mapping[str, Any]:
    """Return a mapping whose keys are all known."""
    if not isinstance(value, Mapping):
        raise PartitionError(f"{name} must be a mapping, got {value!r}")
    for key in value:
        if key not in allowed:
            raise PartitionError(
                f"{name} has the unknown key {key!r}; known are {', '.join(allowed)}"
            )
    return value


def distribution(values: ArrayLike, nodes: int, name: str = "distribution") -> IntArray:
    """Return one distribution: rows per node, int64, at least 0.

    Examples
    --------
    >>> distribution([3, 0, 5.0], nodes=3)
    array([3, 0, 5])
    """
    try:
        found = np.asarray(values)
    except ValueError:
        raise PartitionError(
            f"{name} holds lists of unequal lengths; one number of rows per node is needed"
        ) from None
    if found.ndim != 1:
        raise PartitionError(
            f"{name} has the shape {found.shape}; one number of rows per node is needed"
        )
    checked: IntArray = distributions(found[np.newaxis], nodes, name)[0]
    return checked


def distributions(values: ArrayLike, nodes: int | None, name: str = "distributions") -> IntArray:
    """Return a batch of distributions, int64 of shape [K, nodes], entries at least 0.

    Raises
    ------
    PartitionError
        If it is not numbers of that shape, or an entry is negative, fractional or above 2**52.
    """
    try:
        found = np.asarray(values)
    except ValueError:
        raise PartitionError(
            f"{name} are lists of unequal lengths; give every distribution one number per node"
        ) from None
    if found.ndim != 2:
        raise PartitionError(
            f"{name} has the shape {found.shape}; a batch of K distributions over p nodes is an "
            "array of shape (K, p)"
        )
    if nodes is not None and found.shape[1] != nodes:
        raise PartitionError(
            f"{name} has {found.shape[1]} entries for {nodes} nodes; give each node its rows"
        )
    if found.dtype != np.int64:
        found = _whole(found, name)
    # one pass: negative numbers are very large without a sign
    if found.size and found.view(np.uint64).max() > EXACT // 2:
        k, node = np.argwhere(found.view(np.uint64) > EXACT // 2)[0]
        raise PartitionError(
            f"{name}: node {node} has {found[k, node]} rows; 0 to 2**52 are allowed"
        )
    return found


def named(nodes: Sequence[int]) -> str:
    """Return nodes in words, ranges short.

    Examples
    --------
    >>> named([0, 2, 3, 4]), named([5])
    ('nodes 0, 2-4', 'node 5')
    """
    ranges: list[list[int]] = []
    for node in nodes:
        if ranges and node == ranges[-1][1] + 1:
            ranges[-1][1] = node
        else:
            ranges.append([node, node])
    words = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
    return f"node {words}" if len(nodes) == 1 else f"nodes {words}"


def _whole(found: NDArray[Any], name: str) -> IntArray:
    if found.dtype.kind not in "iuf":
        raise PartitionError(f"{name} must be whole numbers of rows, got {found.dtype} values")
    found = found.astype(np.float64) if found.dtype.kind == "f" else found
    good = (found >= 0) & (found <= EXACT // 2) & (found == np.floor(found))
    if not good.all():
        k, node = np.argwhere(~good)[0]
        raise PartitionError(
            f"{name}: node {node} has {found[k, node]} rows; whole numbers from 0 to 2**52 are "
            "allowed"
        )
    return found.astype(np.int64)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)
