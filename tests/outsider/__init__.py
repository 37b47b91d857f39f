"""An application of somebody else's: power iteration, on public names of `fpmdask.runtime`."""

from fpmdask.runtime.app import App

POWER = App(
    "power",
    run="tests.outsider.coordinator:run",
    check="tests.outsider.coordinator:check",
    kernels={"power.rows": "tests.outsider.kernel:Rows"},
    worker=("tests.outsider.worker",),
    request="tests.outsider.spec:PowerRequest",
    messages="tests.outsider.spec:MESSAGES",
    phases={"prepare": 1, "measure": 2, "iterate": 10},
)
