"""Where the code of this application is."""

from fpmdask.runtime.app import App

APP = App(
    "stencil",
    "fpmdask.apps.stencil.coordinator.run:run",
    "fpmdask.apps.stencil.coordinator.run:check",
    {},
    ("fpmdask.apps.stencil.worker.iterate",),
    ("fpmdask.apps.stencil.tasks",),
    request="fpmdask.apps.stencil.spec:StencilRequest",
    messages="fpmdask.apps.stencil.spec:MESSAGES",
    phases={
        "prepare": 1,
        "measure": 1,
        "instrument": 1,
        "move": 0,
        "iterate": 20,
        "snapshot": 0,
        "checkpoint": 0,
        "write": 1,
    },
)
