"""Instrumentation: a program and a machine, in MHETA's figures, from one traced iteration."""

from fpmdask.mheta.instrument.accuracy import accuracy as accuracy
from fpmdask.mheta.instrument.document import benchmarks_from_dict as benchmarks_from_dict
from fpmdask.mheta.instrument.document import benchmarks_to_dict as benchmarks_to_dict
from fpmdask.mheta.instrument.document import traces_from_dict as traces_from_dict
from fpmdask.mheta.instrument.document import traces_to_dict as traces_to_dict
from fpmdask.mheta.instrument.events import Event as Event
from fpmdask.mheta.instrument.fit import fit as fit
from fpmdask.mheta.instrument.recorder import Call as Call
from fpmdask.mheta.instrument.recorder import Recorder as Recorder
