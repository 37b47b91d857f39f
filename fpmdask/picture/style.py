"""What all pictures share: colours, markers, plain axes, and whether matplotlib is there."""

from __future__ import annotations

from typing import Any

from fpmdask.errors import FpmdaskError

# Okabe and Ito's colours, which colour-blind people can tell apart, without yellow.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#5E4FA2", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
INK, PALE = "#333333", "#C8C8C8"


def require(*modules: str, extra: str = "demo") -> None:
    """Raise a `FpmdaskError` if a module of an extra is not installed."""
    from importlib.util import find_spec

    if missing := [name for name in modules if find_spec(name) is None]:
        names = " and ".join(missing)
        raise FpmdaskError(f'{names} not found; run `pip install "fpmdask[{extra}]"`')


def plain(axes: Any) -> None:
    """Leave out what an axis does not need."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
