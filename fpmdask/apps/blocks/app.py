"""Where the code of this application is."""

from fpmdask.runtime.app import App

APP = App(
    "blocks",
    "fpmdask.apps.blocks.coordinator:run",
    "fpmdask.apps.blocks.coordinator:check",
    {},
    ("fpmdask.apps.blocks.worker",),
)
