"""Updates that are ready to use: any number of dimensions, a halo of one cell on each axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# Bytes of a cache line: vectors that are stored across two of them take a fourth longer.
LINE = 64


def _inner(block: Array, axis: int = 0, shift: int = 0) -> Array:
    """Return the cells without the halo, or their neighbours along an axis."""
    return block[
        tuple(
            slice(1 + (shift if n == axis else 0), length - 1 + (shift if n == axis else 0))
            for n, length in enumerate(block.shape)
        )
    ]


def _room(like: Array) -> Array:
    """Return memory for as many cells that begins with a cache line."""
    raw = np.empty(like.size * like.itemsize + LINE, np.uint8)
    start = -raw.__array_interface__["data"][0] % LINE
    return raw[start : start + like.size * like.itemsize].view(like.dtype).reshape(like.shape)


def _neighbours(block: Array) -> Array:
    """Return the sum of each cell's neighbours along all axes."""
    low, high = _inner(block, 0, -1), _inner(block, 0, 1)
    # NumPy's own memory begins with a multiple of 16 bytes. Masked arrays, and arrays of other
    # libraries, of Python objects, and in Fortran's order are left as they are.
    plain = type(block) is np.ndarray and not block.dtype.hasobject
    ordered = plain and np.argmin(block.strides) == block.ndim - 1
    found = np.add(low, high, out=_room(low)) if ordered else low + high
    for axis in range(1, block.ndim):
        found += _inner(block, axis, -1)
        found += _inner(block, axis, 1)
    return found


def jacobi(block: Array) -> Array:
    """Return the mean of each cell's neighbours: a Jacobi sweep of Laplace's equation.

    Examples
    --------
    >>> jacobi(np.array([[0.0, 1.0, 0.0], [2.0, 9.0, 3.0], [0.0, 4.0, 0.0]]))
    array([[2.5]])
    """
    found = _neighbours(block)
    found *= 0.5 / block.ndim
    return found


def heat(alpha: float) -> Callable[[Array], Array]:
    """Return an explicit Euler step of the heat equation.

    Parameters
    ----------
    alpha
        Diffusivity · Δt / Δx², without a unit; stable up to 1 / (2 · dimensions).

    Examples
    --------
    >>> heat(0.1)(np.array([[0.0, 1.0, 0.0], [2.0, 9.0, 3.0], [0.0, 4.0, 0.0]]))
    array([[6.4]])
    """

    def step(block: Array) -> Array:
        found = _neighbours(block)
        found *= alpha
        found += (1 - 2 * block.ndim * alpha) * _inner(block)
        return found

    return step


def gray_scott(
    feed: float = 0.055, kill: float = 0.062, diffusion: tuple[float, float] = (0.16, 0.08)
) -> Callable[[tuple[Array, Array]], tuple[Array, Array]]:
    """Return a step of the Gray-Scott reaction and diffusion of two fields, with Δt = Δx = 1.

    Parameters
    ----------
    feed, kill
        Rates at which the first substance is fed and the second one removed.
    diffusion
        Diffusivities of both.

    References
    ----------
    J. E. Pearson (1993), Complex Patterns in a Simple System, equation 1.
    """

    def step(blocks: tuple[Array, Array]) -> tuple[Array, Array]:
        made = []
        u, v = map(_inner, blocks)
        reaction = u * v * v
        for block, here, rate in zip(blocks, (u, v), diffusion, strict=True):
            change = _neighbours(block)
            change -= 2 * block.ndim * here
            change *= rate
            change += here
            made.append(change)
        made[0] -= reaction
        made[0] += feed * (1 - u)
        made[1] += reaction
        made[1] -= (feed + kill) * v
        return made[0], made[1]

    return step
