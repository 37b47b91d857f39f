"""Units per worker, so that all finish together."""

from fpmdask.partition.dfpa import Dfpa as Dfpa
from fpmdask.partition.even import even as even
from fpmdask.partition.exact import exact as exact
from fpmdask.partition.geometric import geometric as geometric
from fpmdask.partition.imbalance import imbalance as imbalance
from fpmdask.partition.outcome import Outcome as Outcome
from fpmdask.partition.outcome import Round as Round
from fpmdask.partition.proportional import proportional as proportional
