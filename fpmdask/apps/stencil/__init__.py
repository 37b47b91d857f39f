"""Iterations with a halo: each worker keeps its rows and exchanges only what neighbours need."""

from fpmdask.apps.stencil.updates import gray_scott as gray_scott
from fpmdask.apps.stencil.updates import heat as heat
from fpmdask.apps.stencil.updates import jacobi as jacobi
