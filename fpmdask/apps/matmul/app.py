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
)
