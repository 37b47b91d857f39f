"""Where the code of this application is."""

from fpmdask.runtime.app import App

APP = App(
    "stencil",
    "fpmdask.apps.stencil.coordinator:run",
    "fpmdask.apps.stencil.coordinator:check",
    {},
    ("fpmdask.apps.stencil.worker",),
    ("fpmdask.apps.stencil.tasks",),
    phases={"prepare": 1, "measure": 1, "iterate": 20},
)
