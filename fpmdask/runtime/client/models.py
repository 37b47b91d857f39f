"""`Balancer.models`: what the coordinator knows of the workers, as a client sees it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from distributed import Client

from fpmdask.runtime.known_models import (
    Known,
    KnownMachine,
    KnownModel,
    as_html,
    as_text,
)
from fpmdask.runtime.protocol import FORGET_MODELS, MODELS

if TYPE_CHECKING:
    from fpmdask.store import Saved


async def fetched(client: Client) -> list[Known]:
    """Return all models and machines of the coordinator."""
    found = await MODELS.ask(client.scheduler)
    return [one if isinstance(one, KnownMachine) else KnownModel.from_facts(one) for one in found]


async def forgotten(client: Client, kernel: str | None, worker: str | None) -> int:
    """Have the coordinator forget models; return how many."""
    return await FORGET_MODELS.ask(client.scheduler, kernel=kernel, worker=worker)


class Models(Sequence[KnownModel]):
    """What was known of all workers when `Balancer.models` was read. Immutable.

    Parameters
    ----------
    known
        Models, and MHETA's figures of workers.
    forget
        Has the coordinator forget those of a kernel and a worker.

    Attributes
    ----------
    machines : tuple of KnownMachine
        MHETA's figures: what `stencil` has measured of workers out of core.
    """

    __slots__ = ("_forget", "_known", "machines")

    def __init__(
        self, known: Iterable[Known], forget: Callable[[str | None, str | None], Any]
    ) -> None:
        known = tuple(known)
        self._known = tuple(one for one in known if isinstance(one, KnownModel))
        self.machines = tuple(one for one in known if isinstance(one, KnownMachine))
        self._forget = forget

    @overload
    def __getitem__(self, index: int) -> KnownModel: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[KnownModel, ...]: ...

    def __getitem__(self, index: int | slice) -> KnownModel | tuple[KnownModel, ...]:
        return self._known[index]

    def __iter__(self) -> Iterator[KnownModel]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, kernel: str | None = None, worker: str | None = None) -> Models:
        """Return those of a kernel, of a worker, or of both."""
        every: tuple[Known, ...] = (*self._known, *self.machines)
        chosen = (
            one for one in every if kernel in (None, one.kernel) and worker in (None, one.worker)
        )
        return Models(chosen, self._forget)

    def forget(self, kernel: str | None = None, worker: str | None = None) -> Any:
        """Have the coordinator forget models: what comes next is measured again.

        Parameters
        ----------
        kernel, worker
            Names; None: all of them.

        Returns
        -------
        int
            How many were forgotten. This object stays as it is.
        """
        return self._forget(kernel, worker)

    def save(self, url: str | os.PathLike[str], **options: Any) -> Saved:
        """Store them for other clusters; see `fpmdask.store.ModelStore`.

        Parameters
        ----------
        url
            A folder, or a URL that fsspec knows. A scheduler whose ``fpmdask.models-url`` it is
            begins with these models.
        **options
            Of its file system.

        Returns
        -------
        Saved
            How many documents were written. One that cannot be read is left alone, with a warning.
        """
        from fpmdask.store import ModelStore

        saved = ModelStore(url, **options).save((*self._known, *self.machines))
        if saved.problems:
            warnings.warn("; ".join(saved.problems), stacklevel=2)
        return saved

    def table(self) -> str:
        """Return a table per kernel: worker, points, range of units and speeds, hardware."""
        return as_text((*self._known, *self.machines))

    def __repr__(self) -> str:
        kernels = {one.kernel for one in self._known}
        return f"<Models: {len(self)} of {len(kernels)} kernels>"

    def _repr_html_(self) -> str:
        return as_html((*self._known, *self.machines))
