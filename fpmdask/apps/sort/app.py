"""Where the code of this application is."""

from fpmdask.runtime.app import App

KERNELS = {"sort.local": "fpmdask.apps.sort.kernel:LocalSort"}
APP = App(
    "sort",
    "fpmdask.apps.sort.coordinator.run:run",
    "fpmdask.apps.sort.coordinator.run:check",
    KERNELS,
    ("fpmdask.apps.sort.worker",),
    ("fpmdask.apps.sort.tasks",),
    ahead=True,
    request="fpmdask.apps.sort.spec:SortRequest",
    messages="fpmdask.apps.sort.spec:MESSAGES",
    phases={"prepare": 1, "measure": 1, "sort": 9, "count": 1, "exchange": 9, "publish": 0.5},
)
DEAL = App(
    "sort.deal",
    "fpmdask.apps.sort.coordinator.run:deal",
    "fpmdask.apps.sort.coordinator.run:check",
    KERNELS,
    request="fpmdask.apps.sort.spec:SortRequest",
    messages="fpmdask.apps.sort.spec:DEAL_MESSAGES",
    phases={"prepare": 1, "measure": 3},
)
