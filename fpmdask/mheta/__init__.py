"""MHETA."""

from fpmdask.mheta.machine import Machine as Machine
from fpmdask.mheta.program import Program as Program
from fpmdask.mheta.sections import Array as Array
from fpmdask.mheta.sections import Communication as Communication
from fpmdask.mheta.sections import Section as Section
from fpmdask.mheta.sections import Stage as Stage
