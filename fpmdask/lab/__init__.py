"""A heterogeneous Dask cluster emulated on one Linux machine.

As root each worker gets a network namespace, a CPU quota, a memory limit with real paging and a
link of limited rate; without root it gets a duty cycle. Slow disks, of out-of-core programs, need
no root.
"""

from fpmdask.lab.checks import Check as Check
from fpmdask.lab.checks import doctor as doctor
from fpmdask.lab.definition import LabDefinition as LabDefinition
from fpmdask.lab.definition import WorkerDefinition as WorkerDefinition
from fpmdask.lab.lab import Lab as Lab
from fpmdask.lab.manage import LabStatus as LabStatus
from fpmdask.lab.manage import WorkerStatus as WorkerStatus
from fpmdask.lab.manage import down as down
from fpmdask.lab.manage import status as status
from fpmdask.lab.manage import up as up
from fpmdask.lab.parsing import definitions as definitions
from fpmdask.lab.parsing import load as load
from fpmdask.lab.state import LabState as LabState
