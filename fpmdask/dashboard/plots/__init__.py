"""The plots, one module each: a pure function from a snapshot to columns, and the bokeh figure."""

from fpmdask.dashboard.plots.bytes_per_link import PLOT as bytes_per_link
from fpmdask.dashboard.plots.memory import PLOT as memory
from fpmdask.dashboard.plots.runs import PLOT as runs
from fpmdask.dashboard.plots.shares import PLOT as shares
from fpmdask.dashboard.plots.speed_functions import PLOT as speed_functions
from fpmdask.dashboard.plots.timeline import PLOT as timeline

PLOTS = (speed_functions, shares, timeline, bytes_per_link, memory, runs)
