"""Where the code of this application is."""

from fpmdask.runtime.app import App

APP = App(
    "partition",
    "fpmdask.apps.partition.coordinator:run",
    "fpmdask.apps.partition.coordinator:check",
    {"emulated": "fpmdask.timing.emulated:EmulatedKernel"},
    request="fpmdask.apps.partition.spec:PartitionRequest",
    messages="fpmdask.apps.partition.spec:MESSAGES",
    phases={"prepare": 1, "measure": 19},
)
