"""MHETA: how long an out-of-core iterative program takes on unequal nodes, for any distribution.

A *program* is a sequence of parallel sections, each of tiles, stages and a pattern of messages,
over arrays whose rows are distributed; a *machine* is the memory, disk and network of every node. A
node whose rows do not fit into its memory streams them in blocks, with or without prefetch.
`predict` says what one distribution takes, and on what every node spends it; `predict_many` and
`evaluator` say only how long batches take, for `fpmdask.mheta.search`. `anchors` are
the distributions of simple rules (even, in core, balanced), `spectrum` is the path through them;
`fpmdask.mheta.instrument` makes a Program and a Machine from one recorded iteration.

Pure: NumPy, `fpmdask.models` and `fpmdask.partition`; it runs in any process and thread.

Notes
-----
What the paper has and this package has not: its seventeen emulated architectures (twelve with
prefetch, Fig. 9), of which it describes four, those of Table 1, by words; iterations whose time is
not uniform; two-dimensional distributions. Its misprints and gaps, and what holds here, are listed
at `predict`.

References
----------
M. Nakazawa, D. K. Lowenthal, W. Zhou (2005), The MHETA Execution Model for Heterogeneous Clusters,
SC|05.

Examples
--------
A Jacobi iteration on three nodes; node 0 is slow, node 2 can hold 100 rows.

>>> from fpmdask.mheta import Array, Communication, Machine, Program, Section, Stage
>>> from fpmdask.mheta import anchors, predict
>>> sweep = Stage([0.03, 0.01, 0.01], reads=["u"], writes=["u"])
>>> halo = Communication("nearest_neighbour", message_bytes=8000)
>>> program = Program([Section([sweep], communication=halo)], [Array("u", 8000)])
>>> machine = Machine(3, memory_bytes=[None, None, 800_000], read_overhead_s=[0.001] * 3,
...     read_s_per_byte=[5e-7] * 3, write_s_per_byte=[5e-7] * 3)
>>> for name, rows in anchors(program, machine, rows=700).items():
...     print(f"{name:8} {rows} {predict(program, machine, rows).seconds:.2f} s")
Blk      [234 233 233] 7.02 s
I-C      [300 300 100] 9.00 s
I-C/Bal  [150 450 100] 4.50 s
Bal      [100 300 300] 5.40 s
"""

from typing import TYPE_CHECKING

from fpmdask.lazy_names import lazy

if TYPE_CHECKING:
    from fpmdask.mheta import instrument as instrument
    from fpmdask.mheta import search as search
    from fpmdask.mheta.anchor_distributions import anchors as anchors
    from fpmdask.mheta.blocks import capacity as capacity
    from fpmdask.mheta.evaluate import Evaluator as Evaluator
    from fpmdask.mheta.evaluate import evaluator as evaluator
    from fpmdask.mheta.evaluate import predict as predict
    from fpmdask.mheta.evaluate import predict_many as predict_many
    from fpmdask.mheta.machine import Machine as Machine
    from fpmdask.mheta.prediction import Prediction as Prediction
    from fpmdask.mheta.prediction import SectionPrediction as SectionPrediction
    from fpmdask.mheta.program import Program as Program
    from fpmdask.mheta.search import SearchResult as SearchResult
    from fpmdask.mheta.sections import Array as Array
    from fpmdask.mheta.sections import Communication as Communication
    from fpmdask.mheta.sections import Section as Section
    from fpmdask.mheta.sections import Stage as Stage
    from fpmdask.mheta.spectrum_path import spectrum as spectrum

# Workers need few of these, and a slow one half a second for all.
_HOMES = {
    "instrument": "fpmdask.mheta.instrument",
    "search": "fpmdask.mheta.search",
    "anchors": "fpmdask.mheta.anchor_distributions",
    "capacity": "fpmdask.mheta.blocks",
    "Evaluator": "fpmdask.mheta.evaluate",
    "evaluator": "fpmdask.mheta.evaluate",
    "predict": "fpmdask.mheta.evaluate",
    "predict_many": "fpmdask.mheta.evaluate",
    "Machine": "fpmdask.mheta.machine",
    "Prediction": "fpmdask.mheta.prediction",
    "SectionPrediction": "fpmdask.mheta.prediction",
    "Program": "fpmdask.mheta.program",
    "SearchResult": "fpmdask.mheta.search",
    "Array": "fpmdask.mheta.sections",
    "Communication": "fpmdask.mheta.sections",
    "Section": "fpmdask.mheta.sections",
    "Stage": "fpmdask.mheta.sections",
    "spectrum": "fpmdask.mheta.spectrum_path",
}

__all__ = [*_HOMES]

if not TYPE_CHECKING:  # type checkers see the imports
    __getattr__, __dir__ = lazy(__name__, _HOMES)
