"""The demo on a terminal: live while it runs, a table at the end; elsewhere a line at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from fpmdask.cli.comparison import Comparison

BAR = 32
EIGHTHS = " ▏▎▍▌▋▊▉"


class Show:
    """What has been done, what is being done, and DFPA's rounds as they end.

    A file or a pipe gets a line when something begins and one when it ends, and the last round.

    Parameters
    ----------
    rows, passes : int
        Of the program.
    console : rich.console.Console, optional
        Where to show it.
    """

    def __init__(self, rows: int, passes: int, console: Console | None = None) -> None:
        self._console = console or Console()
        times = f"{passes} times X ← X·M, {rows} rows of float64"
        self._title = Text(f"{times}, on a lab of unequal workers", "bold")
        self._done: list[Text] = []
        self._rounds: list[Mapping[str, Any]] = []
        self._workers: list[str] = []
        self._finished: list[str] = []
        self._stage = ""
        self._began = 0.0
        self._live: Live | None = None
        if self._console.is_terminal:
            # Drawn by the refresh thread too, so that the clock and the spinner move.
            self._live = Live(
                get_renderable=self._picture, console=self._console, refresh_per_second=8
            )
        self._spinner = Spinner("dots", style="cyan")

    def tell(self, event: Mapping[str, Any]) -> None:
        """Take in an event of `fpmdask.cli.comparison.compare`."""
        match event["event"]:
            case "stage":
                self._end_stage()
                self._workers = event.get("workers", self._workers)
                self._stage, self._began = str(event["what"]), time.monotonic()
                if self._live is None:
                    self._print(Text(f"… {self._stage}"))
            case "round":
                self._rounds.append(event)
            case "share":
                self._finished.append(str(event["worker"]))
            case "left out":
                self._tell_done(Text(f"! {event['worker']}: {event['reason']}", "yellow"))
        if self._live is not None:
            self._live.refresh()

    def _end_stage(self) -> None:
        if self._stage:
            spent = time.monotonic() - self._began
            self._tell_done(
                Text.assemble(("✓ ", "green"), f"{self._stage} ", (f"{spent:.1f} s", "dim"))
            )
        self._stage = ""
        self._finished.clear()

    def _tell_done(self, line: Text) -> None:
        self._done.append(line)
        if self._live is None:
            self._print(line)

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)

    def _picture(self) -> RenderableType:
        parts: list[RenderableType] = [self._title, *self._done]
        if self._stage:
            spent = time.monotonic() - self._began
            line = f"{self._stage}  {spent:.1f} s"
            if self._finished:
                line += f"  finished: {', '.join(self._finished)}"
            self._spinner.update(text=Text(line))
            parts.append(self._spinner)
        if self._rounds:
            parts.append(round_table(self._rounds, self._workers))
        return Group(*parts)

    def __enter__(self) -> Self:
        if self._live is None:
            self._print(self._title)
        else:
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._end_stage()
        self._stage = ""
        if self._live is not None:
            self._live.__exit__(kind, error, traceback)
        elif self._rounds:
            self._console.print(round_table(self._rounds, self._workers))


def round_table(rounds: Sequence[Mapping[str, Any]], workers: Sequence[str]) -> Table:
    """Return the last round of DFPA: rows, milliseconds and a bar per worker."""
    last = rounds[-1]
    history = " → ".join(
        "?" if record["imbalance"] is None else f"{record['imbalance']:.2f}" for record in rounds
    )
    table = Table(
        title=f"DFPA, round {last['number']}: imbalance {history}",
        title_justify="left",
        title_style="",
        box=None,
        padding=(0, 2, 0, 0),
        header_style="dim",
    )
    table.add_column("  worker")
    table.add_column("rows", justify="right")
    table.add_column("kernel", justify="right")
    table.add_column("")
    measured = [s for s in last["kernel_seconds"].values() if s and math.isfinite(s)]
    slowest = max(measured, default=1.0)
    for name in (worker for worker in workers if worker in last["units"]):
        seconds = last["kernel_seconds"].get(name)
        known = seconds is not None and math.isfinite(seconds)
        table.add_row(
            f"  {name}",
            str(last["units"][name]),
            f"{seconds * 1e3:.1f} ms" if known else "–",
            Text(bar(seconds / slowest) if known else "", "cyan"),
        )
    return table


def bar(share: float) -> str:
    """Return a bar of a share of the full width, to an eighth of a character.

    Examples
    --------
    >>> len(bar(1.0)), bar(0.5 / BAR)
    (32, '▌')
    """
    eighths = round(8 * BAR * min(max(share, 0.0), 1.0))
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def show_result(result: Comparison, console: Console | None = None) -> None:
    """Print the table of both runs and the totals."""
    console = console or Console()
    console.print()
    console.print(result_table(result))
    console.print()
    console.print(
        f"Balanced [bold]{result.balanced_seconds:.2f} s[/], split evenly "
        f"{result.even_seconds:.2f} s: [bold green]{result.ratio:.2f} times as fast[/] "
        f"({result.ratio_with_measuring:.2f} with the {result.measuring_seconds:.2f} s that "
        f"measuring took)."
    )
    if result.imbalance is not None:
        console.print(
            f"DFPA ended {_reason(result.reason)} after {result.rounds} rounds, imbalance "
            f"{result.imbalance:.2f}. A scheduler that stays keeps the models; the next call of "
            "this kind only confirms them."
        )
    for worker in result.workers:
        if worker.memory_rows < worker.even_rows:
            console.print(
                f"{worker.name}'s memory holds {worker.memory_rows} rows; others are on its disk."
            )
    console.print(f"Both results equal NumPy's within rounding ({result.deviation:.1e}).")


def show_files(files: Mapping[str, str], console: Console | None = None) -> None:
    """Print where the files are, which have been written."""
    console = console or Console()
    for name, path in files.items():
        console.print(f"{name.capitalize()}: {path}", soft_wrap=True, highlight=False)


def result_table(result: Comparison) -> Table:
    """Return the table: a row per worker, and the totals."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", show_footer=True)
    total = sum(worker.gflops for worker in result.workers)
    table.add_column("worker", footer="together")
    columns = (
        ("Gflop/s", f"{total:.1f}"),
        ("even: rows", str(result.rows)),
        ("seconds", f"{result.even_seconds:.2f}"),
        ("balanced: rows", str(result.rows)),
        ("seconds", f"{result.balanced_seconds:.2f}"),
    )
    for header, footer in columns:
        table.add_column(header, justify="right", footer=footer)
    for worker in result.workers:
        table.add_row(
            worker.name,
            f"{worker.gflops:.1f}",
            str(worker.even_rows),
            f"{worker.even_seconds:.2f}",
            str(worker.balanced_rows),
            f"{worker.balanced_seconds:.2f}",
        )
    return table


def _reason(reason: str) -> str:
    return {
        "balanced": "balanced",
        "stagnant": "at what it can resolve",
        "max_rounds": "at its most rounds",
    }.get(reason, reason)
