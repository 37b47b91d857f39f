"""Make a Dask cluster of unequal workers finish together."""

from typing import TYPE_CHECKING

from fpmdask.lazy_names import lazy

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fpmdask.balancer import Balancer as Balancer
    from fpmdask.lab import Lab as Lab

# Public names load on first use, so that `import fpmdask` stays cheap.
_LAZY = {"Balancer": "fpmdask.balancer", "Lab": "fpmdask.lab"}

__all__ = ["Balancer", "Lab", "__version__"]

if not TYPE_CHECKING:  # type checkers see the imports
    __getattr__, __dir__ = lazy(__name__, _LAZY)
