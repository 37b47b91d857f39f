"""Where a person sees the progress of a call: on a terminal by rich, in a notebook as HTML.

In the client, in its event loop's thread. A display gets readings and draws them.
"""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec
from typing import Any, Protocol

from fpmdask.errors import CoordinatorError
from fpmdask.runtime.progress import Reading, as_html, as_text

NO_RICH = (
    "progress=True needs rich outside of notebooks, and it is not installed; run "
    '`pip install "fpmdask[progress]"`, or give a function of events'
)


class Display(Protocol):
    """Draws the readings of one call."""

    def show(self, reading: Reading) -> None:
        """Draw a reading over the one before."""

    def close(self, reading: Reading) -> None:
        """Draw the last one."""


def chosen(asked: bool | None, *, notebook: bool, terminal: bool, rich: bool) -> str | None:
    """Return which display a call has: "html", "rich" or None.

    Parameters
    ----------
    asked
        True: one is wanted; None: where somebody looks; False: none.
    notebook, terminal
        Whether this process is a Jupyter kernel, and whether it writes to a terminal.
    rich
        Whether that is installed.

    Raises
    ------
    CoordinatorError
        If one is wanted that needs rich.

    Examples
    --------
    >>> [chosen(None, notebook=n, terminal=t, rich=True) for n, t in ((1, 0), (0, 1), (0, 0))]
    ['html', 'rich', None]
    """
    if asked is False or not (asked or notebook or terminal):
        return None
    if notebook:
        return "html"
    if rich:
        return "rich"
    if asked:
        raise CoordinatorError(NO_RICH)
    return None


def choose(asked: bool | None) -> str | None:
    """Return which display a call of this process has.

    Raises
    ------
    CoordinatorError
        If one is wanted that needs rich.
    """
    return chosen(
        asked,
        notebook=in_notebook(),
        terminal=sys.stderr is not None and sys.stderr.isatty(),
        rich=find_spec("rich") is not None,
    )


def in_notebook() -> bool:
    """Tell whether this process is a Jupyter kernel."""
    if "IPython" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return hasattr(get_ipython(), "kernel")


def display(kind: str) -> Display:
    """Return a display of a `chosen` kind."""
    return HtmlDisplay() if kind == "html" else TerminalDisplay()


class HtmlDisplay:
    """One output of the cell that made the call, updated; no widgets, nothing to install."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, reading: Reading) -> None:
        """Draw a reading over the one before."""
        from IPython.display import HTML
        from IPython.display import display as new_output

        html = HTML(as_html(reading))
        # an event loop's thread has the context of the thread that made the call, and so its cell
        if self._handle is None:
            self._handle = new_output(html, display_id=True)
        else:
            self._handle.update(html)

    close = show


class _Terminal:
    """Standard error, on which rich draws the lines of all calls that go on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[int, Reading] = {}
        self._live: Any = None

    def show(self, number: int, reading: Reading) -> None:
        """Draw the line of a call."""
        with self._lock:
            self._lines[number] = reading
            self._draw()

    def close(self, number: int, reading: Reading) -> None:
        """Print the last line of a call above those of others."""
        with self._lock:
            self._lines.pop(number, None)
            self._draw()
            self._live.console.print(as_text(reading), highlight=False, soft_wrap=True)
            if not self._lines:
                self._live.stop()
                self._live = None

    def _draw(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            # without rich's own thread: each call draws its line again and again
            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        lines = "\n".join(map(as_text, self._lines.values()))
        self._live.update(Text(lines, no_wrap=True, overflow="ellipsis"), refresh=True)


_TERMINAL = _Terminal()


class TerminalDisplay:
    """A line on standard error."""

    def show(self, reading: Reading) -> None:
        """Draw a reading over the one before."""
        _TERMINAL.show(id(self), reading)

    def close(self, reading: Reading) -> None:
        """Leave the last one standing."""
        _TERMINAL.close(id(self), reading)
