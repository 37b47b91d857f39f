"""What a team writes amid its iterations, and what it reads of that in a later attempt.

Runs in the thread of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fpmdask.apps.stencil.block import Array
from fpmdask.apps.stencil.worker.counters import Counters
from fpmdask.apps.stencil.worker.team import Team
from fpmdask.runtime.worker.rows_output import RowsOutput
from fpmdask.runtime.worker.side import RunSpace

if TYPE_CHECKING:
    from fpmdask.apps.stencil.worker.own_rows import OwnRows
    from fpmdask.runtime.worker.checkpoints import Checkpoints


class Stored:
    """The output and the checkpoints of a team, where there are any.

    Parameters
    ----------
    team, space, order
        Who writes, the run, and what the step was called with.
    writer
        What this worker is called in messages.
    counters
        Count what writing takes.
    """

    def __init__(
        self,
        team: Team,
        space: RunSpace,
        order: Mapping[str, Any],
        writer: str,
        counters: Counters,
    ) -> None:
        self._team, self._space, self._writer, self._counters = team, space, writer, counters
        self._orders = order["output"], order["checkpoint"]
        self.output: RowsOutput | None = None
        self.checkpoints: Checkpoints | None = None
        self.gather()

    def gather(self) -> None:
        """Have all workers write that the team has now."""
        team, (output, checkpoint) = self._team, self._orders
        if checkpoint is not None:
            from fpmdask.runtime.worker.checkpoints import Checkpoints

            self.checkpoints = Checkpoints(
                checkpoint,
                team.attempt,
                team.own,
                [*team.spans],
                team.reduce,
                self._space.cancelled,
                lambda message: team.commands.tell(warning=message),
            )
        if output is not None:
            exchange, reduce = team.exchange, team.reduce
            self.output = RowsOutput(exchange, reduce, team.name, output, self._writer)

    def find(self, iterations: int) -> int:
        """Return the iteration of the newest checkpoint that can be used, 0 where there is none."""
        if self.checkpoints is None:
            return 0
        before = None if self.output is None else self.output.first_missing()
        return self.checkpoints.find(iterations, before)

    def load(self, targets: Sequence[Array], low: int, high: int) -> None:
        """Fill rows from the checkpoint that was found."""
        assert self.checkpoints is not None
        self.checkpoints.load(targets, low)

    def save(self, iteration: int, rows: OwnRows, *, last: bool = False) -> float:
        """Write the rows of now where that is due; return the seconds that this took."""
        team, counters = self._team, self._counters
        before = counters.seconds["saving"]
        with counters.timed("saving"):
            if self.output is not None and (last or self.output.due(iteration)):
                phase = "write" if last else "snapshot"
                team.say_phase(phase, iteration)
                counters.nbytes_received += self.output.save(
                    team.spans,
                    iteration,
                    rows.sweeps.now(),
                    counters.speed,
                )
                team.commands.tell(saved=iteration)
                team.say_phase(phase, iteration, ended=True)
            if self.checkpoints is not None and not last and self.checkpoints.due(iteration):
                team.say_phase("checkpoint", iteration)
                self.checkpoints.save(team.spans, iteration, len(rows.spec.fields), rows.now())
                team.say_phase("checkpoint", iteration, ended=True)
        return counters.seconds["saving"] - before

    def end(self) -> None:
        """Have all that wait for rows to write be refused."""
        if self.output is not None:
            self.output.end()
