"""A heterogeneous Dask cluster emulated on one Linux machine."""

from fpmdask.lab.definition import LabDefinition as LabDefinition
from fpmdask.lab.definition import WorkerDefinition as WorkerDefinition
from fpmdask.lab.definition import definitions as definitions
from fpmdask.lab.definition import load as load
from fpmdask.lab.lab import Lab as Lab
from fpmdask.lab.state import LabState as LabState
