"""Where the code of this application is."""

from fpmdask.runtime.app import App

APP = App(
    "rebalance",
    "fpmdask.apps.rebalance.coordinator:run",
    "fpmdask.apps.rebalance.coordinator:check",
    {},
    ("fpmdask.apps.rebalance.worker",),
)
