"""Where the code of this application is."""

from fpmdask.runtime.app import App

APP = App(
    "blocks",
    "fpmdask.apps.blocks.coordinator.run:run",
    "fpmdask.apps.blocks.coordinator.run:check",
    {},
    ("fpmdask.apps.blocks.worker",),
    ("fpmdask.apps.blocks.tasks",),
    request="fpmdask.apps.blocks.spec:BlocksRequest",
    messages="fpmdask.apps.blocks.spec:MESSAGES",
    phases={"prepare": 1, "compute": 19},
)
