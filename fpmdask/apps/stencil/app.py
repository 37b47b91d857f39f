"""Where the code of this application is."""

from fpmdask.runtime.app import App

APP = App(
    "stencil",
    "fpmdask.apps.stencil.coordinator:run",
    "fpmdask.apps.stencil.coordinator:check",
    {},
    ("fpmdask.apps.stencil.worker.iterate",),
    ("fpmdask.apps.stencil.tasks",),
    request="fpmdask.apps.stencil.spec:StencilRequest",
)
