"""The group of all commands, and how their errors become messages and exit codes."""

from __future__ import annotations

import errno
from typing import Any

import click

from fpmdask import __version__
from fpmdask.cli.demo import demo
from fpmdask.cli.doctor import doctor
from fpmdask.cli.lab import lab
from fpmdask.cli.partition import partition
from fpmdask.cli.replay import replay
from fpmdask.errors import FpmdaskError

INTERRUPTED = 130


class Commands(click.Group):
    """A group whose commands may raise our errors: they are said in one sentence on stderr."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; only what nobody foresaw leaves a traceback."""
        try:
            return super().invoke(ctx)
        except FpmdaskError as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            click.echo("Interrupted; what was started is taken down.", err=True)
            ctx.exit(INTERRUPTED)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # click ends quietly when nobody reads on
            raise click.ClickException(_told(error)) from error


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
      3    the answer is no: replay found differences, doctor something missing
      130  interrupted
    """


for command in (demo, partition, replay, lab, doctor):
    main.add_command(command)
