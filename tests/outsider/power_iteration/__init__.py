"""An application of somebody else's: power iteration, on public names of `fpmdask.runtime`."""

from fpmdask.runtime.app import App

POWER = App(
    "power",
    run="power_iteration.coordinator:run",
    check="power_iteration.coordinator:check",
    kernels={"power.rows": "power_iteration.kernel:Rows"},
    worker=("power_iteration.worker",),
    request="power_iteration.spec:PowerRequest",
    messages="power_iteration.spec:MESSAGES",
    phases={"prepare": 1, "measure": 2, "iterate": 10},
)
