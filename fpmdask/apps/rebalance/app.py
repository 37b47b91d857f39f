"""Where the code of this application is."""

from fpmdask.runtime.app import App

APP = App(
    "rebalance",
    "fpmdask.apps.rebalance.coordinator.run:run",
    "fpmdask.apps.rebalance.coordinator.run:check",
    {},
    ("fpmdask.apps.rebalance.worker",),
    ("fpmdask.apps.rebalance.tasks",),
    request="fpmdask.apps.rebalance.spec:RebalanceRequest",
    messages="fpmdask.apps.rebalance.spec:MESSAGES",
    phases={"prepare": 1, "know": 1, "measure": 5, "move": 10},
)
