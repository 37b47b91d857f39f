"""Pictures by matplotlib, one module each: of a run, of MHETA's predictions."""

from fpmdask.picture.run import figure as figure
from fpmdask.picture.style import require as require
