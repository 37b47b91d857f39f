"""Where the code of this application is."""

from fpmdask.runtime.app import App

APP = App(
    "matmul",
    "fpmdask.apps.matmul.coordinator.run:run",
    "fpmdask.apps.matmul.coordinator.run:check",
    {"matmul.panel": "fpmdask.apps.matmul.kernel:PanelUpdate"},
    ("fpmdask.apps.matmul.worker.share", "fpmdask.apps.matmul.tasks"),
    ("fpmdask.apps.matmul.tasks",),
    ahead=True,
    phases={"prepare": 1, "measure": 3, "place": 1, "read": 2, "multiply": 20},
)
