"""Which worker has which blocks of a matrix, so that all finish together and little moves."""

from fpmdask.layout.columns import columns as columns
from fpmdask.layout.unit import UnitLayout as UnitLayout
