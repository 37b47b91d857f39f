"""Units per worker, so that all finish together."""

from fpmdask.partition.even import even as even
from fpmdask.partition.geometric import geometric as geometric
from fpmdask.partition.imbalance import imbalance as imbalance
