"""Instrumentation: a program and a machine, in MHETA's figures, from one traced iteration."""

from typing import TYPE_CHECKING

from fpmdask.lazy_names import lazy

if TYPE_CHECKING:
    from fpmdask.mheta.instrument.document import benchmarks_from_dict as benchmarks_from_dict
    from fpmdask.mheta.instrument.document import benchmarks_to_dict as benchmarks_to_dict
    from fpmdask.mheta.instrument.document import traces_from_dict as traces_from_dict
    from fpmdask.mheta.instrument.document import traces_to_dict as traces_to_dict
    from fpmdask.mheta.instrument.events import Event as Event
    from fpmdask.mheta.instrument.fitting import fit as fit
    from fpmdask.mheta.instrument.prediction_accuracy import accuracy as accuracy
    from fpmdask.mheta.instrument.recorder import Call as Call
    from fpmdask.mheta.instrument.recorder import Recorder as Recorder

# Workers need few of these, and a slow one half a second for all.
_HOMES = {
    "accuracy": "fpmdask.mheta.instrument.prediction_accuracy",
    "benchmarks_from_dict": "fpmdask.mheta.instrument.document",
    "benchmarks_to_dict": "fpmdask.mheta.instrument.document",
    "traces_from_dict": "fpmdask.mheta.instrument.document",
    "traces_to_dict": "fpmdask.mheta.instrument.document",
    "Event": "fpmdask.mheta.instrument.events",
    "fit": "fpmdask.mheta.instrument.fitting",
    "Call": "fpmdask.mheta.instrument.recorder",
    "Recorder": "fpmdask.mheta.instrument.recorder",
}

__all__ = [*_HOMES]

if not TYPE_CHECKING:  # type checkers see the imports
    __getattr__, __dir__ = lazy(__name__, _HOMES)
