"""The instrumented iteration: what a sample of rows takes, out of core, before others are loaded.

Runs in the thread of a step. The sample of each worker is some of the rows that it would have if
all had as many: few, so that no worker reads, computes and moves a whole share of rows only for
being measured. All workers sweep theirs together, once, as one array, with halos between them: an
update then gets rows as neighbours that are none in the whole array.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from fpmdask.apps.stencil.block import Bring, UpdateFailed
from fpmdask.apps.stencil.history import instrumented_rows, sample_rows
from fpmdask.apps.stencil.neighbours import spans_of
from fpmdask.apps.stencil.program import streamed_rows
from fpmdask.apps.stencil.sizes import in_core_nbytes
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.apps.stencil.worker.counters import Counters
from fpmdask.apps.stencil.worker.halos import Halos
from fpmdask.apps.stencil.worker.inputs import Inputs
from fpmdask.apps.stencil.worker.own_rows import Means
from fpmdask.apps.stencil.worker.probe import copied
from fpmdask.apps.stencil.worker.streamed import Streamed
from fpmdask.apps.stencil.worker.sweeps import OutOfCore
from fpmdask.apps.stencil.worker.team import Team
from fpmdask.mheta.instrument import Recorder
from fpmdask.runtime.remote_errors import describe_error
from fpmdask.runtime.worker.block_file import BlockFile
from fpmdask.runtime.worker.disk_benchmark import benchmark_disk
from fpmdask.runtime.worker.message_benchmark import benchmark_messages, refuse_messages


class InstrumentedIteration:
    """The instrumented iteration on one worker: the measured input of MHETA's model.

    Parameters
    ----------
    spec, means, inputs, team
        What is iterated, with what, from where, by whom. The team has the rows of the sample from
        here on, until it is placed anew.
    turn
        How often there was one before.
    """

    def __init__(
        self, spec: StencilSpec, means: Means, inputs: Inputs, team: Team, turn: int
    ) -> None:
        self._name = f"sample {turn}"
        self._means, self._inputs, self._team, self._own = means, inputs, team, team.span
        counts = {
            worker: sample_rows(high - low, spec.row_nbytes, means.tuning.sample_nbytes, spec.least)
            for worker, (low, high) in team.spans.items()
        }
        team.place((worker, *span) for worker, span in spans_of(counts).items())
        whole = sum(counts.values())
        fields, args = (
            tuple(replace(one, lengths=(whole,)) for one in some)
            for some in (spec.fields, spec.args)
        )
        self._spec = replace(spec, fields=fields, args=args)
        self._halos = Halos(team, len(fields), f"halo of {self._name}")
        self._messages, self._ranks = f"{team.attempt} {self._name}", [*team.placed.ranks]

    def measured(self) -> Mapping[str, Any]:
        """Return what is to be told: `spec.Instrumented`."""
        spec, means, team, (low, high) = self._spec, self._means, self._team, self._team.span
        rows = instrumented_rows(high - low, self._streamed(high - low))
        file, recorder, raised = BlockFile(means.folder), Recorder(time.perf_counter), None
        try:
            streamed = Streamed(
                spec,
                means.update,
                (low, high),
                rows,
                file,
                prefetch=means.prefetch,
                band_nbytes=means.tuning.band_nbytes,
            )
            first = self._first(high - low)
            streamed.bring(self._at_once(_from(self._inputs.fields, first - low)))
            streamed.bring_args(_from(self._inputs.args, first - low))
            recorder.at(section=0, tile=0)
            try:
                OutOfCore(streamed, self._halos, means.threads, Counters()).one(
                    0, recorder, checks=False
                )
            except UpdateFailed as failed:  # it may be of rows that are no neighbours
                raised = str(describe_error(failed.__cause__ or failed)["message"])
            (rows_of_first, *_) = streamed.sources()
            benchmarks = {**benchmark_disk(rows_of_first.region), "messages": []}
            delay = 0.0
            if spec.depth[0]:
                sizes = [1, max(2, sum(edge.nbytes for edge in streamed.edge(0)))]
                benchmarks["messages"], delay = benchmark_messages(
                    team.exchange, self._messages, self._ranks, sizes
                )
        finally:
            file.close()
        events = [
            {name: value for name, value in asdict(event).items() if value is not None}
            for event in recorder.events
        ]
        told = {"events": events, "benchmarks": benchmarks, "message_delay_s": delay}
        return {"measured": told, "raised": raised}

    def _streamed(self, rows: int) -> int:
        means = self._means
        return streamed_rows(self._spec, rows, means.memory, prefetch=means.prefetch)

    def _first(self, rows: int) -> int:
        """Return which of the worker's rows come first: a chunk of Zarr's, if that has so many."""
        (low, high), unit = self._own, self._inputs.unit
        start = -(-low // unit) * unit
        return start if start + rows <= high else low

    def _at_once(self, bring: Bring) -> Bring:
        """Have rows that are filled in pieces be brought all at once, if there is memory for them.

        They may be rows of one chunk of Zarr, which each piece would decode.
        """
        spec, memory, (low, high) = self._spec, self._means.memory, self._team.span
        if memory is not None and 2 * in_core_nbytes(spec, high - low) > memory:
            return bring
        shape = (high - low, *spec.shape[1:])
        rows = [np.empty(shape, one.dtype) for one in spec.fields]
        bring(rows, low, high)
        return partial(copied, rows, low)

    def end(self) -> None:
        """Offer halos no more, once all workers have told what they have measured."""
        keys = self._halos.keys()
        for key in keys:
            self._team.exchange.retire(key)

    def refuse(self) -> None:
        """Have all that wait for this worker be refused: it goes on no further."""
        exchange, keys = self._team.exchange, self._halos.keys()
        for key in keys:
            exchange.offers.end(key)
        refuse_messages(exchange, self._messages, self._ranks)


def _from(bring: Bring, offset: int) -> Bring:
    """Return what fills rows of a sample from those that are so much further down."""
    return lambda targets, low, high: bring(targets, low + offset, high + offset)
