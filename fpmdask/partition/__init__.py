"""Units per worker, so that all finish together."""

from fpmdask.partition.analytic import by_complexity as by_complexity
from fpmdask.partition.analytic import integral as integral
from fpmdask.partition.analytic import nlogn_correction as nlogn_correction
from fpmdask.partition.analytic import nlogn_lambert as nlogn_lambert
from fpmdask.partition.analytic import polynomial as polynomial
from fpmdask.partition.batches import Batches as Batches
from fpmdask.partition.dfpa import Dfpa as Dfpa
from fpmdask.partition.even import even as even
from fpmdask.partition.exact import exact as exact
from fpmdask.partition.geometric import geometric as geometric
from fpmdask.partition.imbalance import imbalance as imbalance
from fpmdask.partition.outcome import Outcome as Outcome
from fpmdask.partition.outcome import Round as Round
from fpmdask.partition.proportional import proportional as proportional
