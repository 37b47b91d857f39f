"""What an application is, and how it is found: by its name, or as ``"module:attribute"``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from fpmdask.errors import CoordinatorError
from fpmdask.runtime.wire import Messages

Run = Callable[[Any], Awaitable[dict[str, Any]]]
Check = Callable[[Any], None]


@dataclass(frozen=True)
class App:
    """An application of the coordinator: names of code, so that any process can have it cheaply.

    Parameters
    ----------
    name
        In ids of runs, reports and messages: letters, digits, ``_`` and ``.``.
    run
        ``"module:function"`` of ``async def run(context) -> dict``, which the scheduler calls; its
        value is plain data (numbers, strings, lists, dictionaries).
    check
        ``"module:function"`` of ``def check(context) -> None``, called before anything starts: it
        raises where the spec or the cluster do not suffice. None: whatever there is suffices.
    kernels
        Name of a kernel that the application times → ``"module:attribute"`` of its factory. What a
        worker has registered under this name comes first.
    worker
        Modules of its steps on workers, imported before a run's first step.
    tasks
        Modules of its ordinary Dask tasks. The scheduler imports them when fpmdask is installed:
        it would when it unpickles a graph, on its event loop.
    request
        ``"module:class"`` of the TypedDict that declares a request: one that is not as declared is
        refused. By default ``spec`` is the application's own.
    messages
        ``"module:attribute"`` of the `Messages` that declare all else that processes tell each
        other: steps that are not among them are not submitted. By default there are no steps.
    ahead
        Whether workers import these as soon as they join: for runs that take less than a second.
    phases
        Name of each phase of a run, in order → what it takes, about, relative to the others: what
        a progress bar goes by; 0 where it comes amid others. Steps of a team are phases
        (`RunContext.progress` tells of others).

    Examples
    --------
    >>> App("power", "their.power:run", worker=("their.steps",)).worker
    ('their.steps',)
    """

    name: str
    run: str
    check: str | None = None
    kernels: Mapping[str, str] = field(default_factory=dict)
    worker: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    request: str = "fpmdask.runtime.wire:Foreign"
    messages: str = "fpmdask.runtime.wire:PLAIN"
    ahead: bool = False
    phases: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name.replace("_", "").replace(".", "").isalnum():
            raise ValueError(f"name = {self.name!r}; give letters, digits, _ and .")
        named = self.run, self.check, self.request, self.messages, *self.kernels.values()
        for target in filter(None, named):
            if not all(target.partition(":")):
                raise ValueError(
                    f"{target!r} is no 'module:function' of the application {self.name}"
                )


def find(app: str, known: Mapping[str, str]) -> App:
    """Return an application by its name, or by where it is: ``"module:attribute"``.

    Parameters
    ----------
    app
        What is asked for.
    known
        Name → ``"module:attribute"`` of those that are installed.

    Raises
    ------
    CoordinatorError
        If there is none, it cannot be imported, or it is no `App`.
    """
    where = known.get(app, app)
    if not all(where.partition(":")):
        raise CoordinatorError(
            f"found no application {app!r}; known are {', '.join(sorted(known))}. One of another "
            "package is named as 'module:attribute'"
        )
    found = code(where, app)
    if not isinstance(found, App):
        raise CoordinatorError(f"{app!r} is a {type(found).__name__}; give an fpmdask App")
    return found


def messages(app: App) -> Messages:
    """Return what the processes of an application's run tell each other.

    Raises
    ------
    CoordinatorError
        If it cannot be imported, or is no `Messages`.
    """
    found = code(app.messages, app.name)
    if not isinstance(found, Messages):
        raise CoordinatorError(
            f"{app.messages!r} of the application {app.name!r} is a {type(found).__name__}; give "
            "fpmdask.runtime.wire.Messages"
        )
    return found


def code(where: str, app: str) -> Any:
    """Return what ``"module:attribute"`` names, for an application.

    Raises
    ------
    CoordinatorError
        If it is not there.
    """
    module, _, attribute = where.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise CoordinatorError(
            f"{where!r} of the application {app!r} cannot be imported ({error}); install its "
            "package on the scheduler and the workers"
        ) from error
