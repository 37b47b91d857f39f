"""The group of all commands, and how their errors become messages and exit codes."""

from __future__ import annotations

import contextlib
import errno
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import click

from fpmdask import __version__
from fpmdask.cli.demo import demo
from fpmdask.cli.doctor import doctor
from fpmdask.cli.lab import lab
from fpmdask.cli.mheta import mheta
from fpmdask.cli.models import models
from fpmdask.cli.partition import partition
from fpmdask.cli.records import records
from fpmdask.cli.replay import replay
from fpmdask.errors import FpmdaskError

INTERRUPTED, TERMINATED = 130, 143


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does: what it started is taken down."""


class Commands(click.Group):
    """A group whose commands may raise our errors: they are said in one sentence on stderr."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; only what nobody foresaw leaves a traceback."""
        try:
            with _terminable():
                return super().invoke(ctx)
        except FpmdaskError as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt as interrupt:
            click.echo("Interrupted; what was started is taken down.", err=True)
            ctx.exit(TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # click ends quietly when nobody reads on
            raise click.ClickException(_told(error)) from error


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Turn the first SIGTERM into an exception; further ones do not disturb the cleaning up."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def _told(error: OSError) -> str:
    if error.filename is None:
        found = str(error) or type(error).__name__
        return f"{found}; try again, `fpmdask doctor` examines the machine"
    return f"{error.filename}: {error.strerror}; check the path and its permissions"


@click.group(name="fpm", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fpmdask")
def main() -> None:
    """Make a Dask cluster of unequal workers finish together.

    Start with `fpmdask demo`. Every command takes --json.

    \b
    Exit codes:
      0    done
      1    an error; stderr says what to do
      2    wrong usage
      3    the answer is no: replay found differences, doctor something missing,
           records verify something wrong
      130  interrupted
      143  terminated (SIGTERM)
    """


for command in (demo, partition, mheta, replay, models, records, lab, doctor):
    main.add_command(command)
