"""Matrix multiplication: the panel update that is timed and run, its plan, its run on a cluster."""

from fpmdask.runtime.app import App

APP = App(
    "matmul",
    "fpmdask.apps.matmul.coordinator.run:run",
    "fpmdask.apps.matmul.coordinator.run:check",
    {"matmul.panel": "fpmdask.apps.matmul.kernel:PanelUpdate"},
    ("fpmdask.apps.matmul.worker.share", "fpmdask.apps.matmul.tasks"),
    ahead=True,
)
