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
    request="fpmdask.apps.matmul.spec:MatmulRequest",
    messages="fpmdask.apps.matmul.spec:MESSAGES",
    phases={"prepare": 1, "measure": 3, "place": 1, "read": 2, "multiply": 20},
)
# A product in tiles, which the client has written one after the other.
TILES = App(
    "matmul.tiles",
    "fpmdask.runtime.coordinator.client_stages:run",
    "fpmdask.runtime.coordinator.client_stages:check",
    request="fpmdask.runtime.wire:Request",
    messages="fpmdask.runtime.wire:STAGES",
)
