"""Rows of the inputs, from Dask's chunks and Zarr arrays straight into their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fpmdask.apps.stencil.block import Array
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.runtime.regions import whole
from fpmdask.runtime.rows import Rows
from fpmdask.runtime.worker.fetch import Want
from fpmdask.runtime.worker.side import RunSpace
from fpmdask.runtime.zarr_storage import StoredRows


class Inputs:
    """Where a step of this worker has its fields and constant arrays from.

    Parameters
    ----------
    space, spec, order
        The run, what is iterated, and who holds the chunks.
    name
        Of the worker.

    Attributes
    ----------
    nbytes_received : int
        From other workers.
    """

    def __init__(
        self, space: RunSpace, spec: StencilSpec, order: Mapping[str, Any], name: str
    ) -> None:
        self._space, self._spec, self._order, self._name = space, spec, order, name
        self.nbytes_received = 0

    @property
    def unit(self) -> int:
        """Rows of the longest chunks of Zarr inputs: who reads a part of a chunk decodes it all.

        It opens them: for who has rows to read.
        """
        inputs = (*self._spec.fields, *self._spec.args)
        return max((self._stored(one.stored).unit for one in inputs if one.stored), default=1)

    def fields(self, targets: Sequence[Array], low: int, high: int) -> None:
        """Fill rows of the fields."""
        self._load(self._spec.fields, self._order["fields"], targets, low)

    def args(self, targets: Sequence[Array], low: int, high: int) -> None:
        """Fill rows of the constant arrays; those beyond an end are at the other one."""
        total, at = self._spec.shape[0], 0
        while low < high:
            start = low % total
            count = min(high - low, total - start)
            rows = [target[at : at + count] for target in targets]
            self._load(self._spec.args, self._order["args"], rows, start)
            low, at = low + count, at + count

    def _load(
        self,
        inputs: Sequence[Rows],
        holders: Sequence[Sequence[Sequence[str]]],
        targets: Sequence[Array],
        low: int,
    ) -> None:
        """Fetch rows of inputs, from a number on, into their places."""
        wants = []
        for one, places, target in zip(inputs, holders, targets, strict=True):
            at = 0
            if not len(target):
                continue
            if one.stored is not None:
                self._stored(one.stored).read(low, target)
                continue
            for chunk, begin, end in one.pieces((low, low + len(target))):
                rest = target.shape[1:]
                box = ((begin, end), *whole(rest))
                out = target[at : at + end - begin]
                shape = (one.lengths[chunk], *rest)
                wants.append(Want(one.keys[chunk], box, out, places[chunk], shape=shape))
                at += end - begin
        fetch = self._space.exchange.fetch(wants)
        fetch.wait()
        self.nbytes_received += fetch.nbytes

    def _stored(self, array: bytes) -> StoredRows:
        """Return a Zarr array, which is opened once."""
        kept = self._space.kept
        if array not in kept:
            kept[array] = StoredRows(array, f"worker {self._name}")
        found: StoredRows = kept[array]
        return found
