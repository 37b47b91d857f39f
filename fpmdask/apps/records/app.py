"""Where the code of this application is."""

from fpmdask.runtime.app import App

APP = App(
    "records",
    "fpmdask.apps.records.coordinator.run:run",
    "fpmdask.apps.records.coordinator.run:check",
    {"records.local": "fpmdask.apps.records.kernel:RecordSort"},
    ("fpmdask.apps.records.worker.share", "fpmdask.apps.records.worker.survey"),
    request="fpmdask.apps.records.spec:RecordsRequest",
    messages="fpmdask.apps.records.spec:MESSAGES",
    phases={
        "survey": 1,
        "measure": 1,
        "claim": 0.2,
        "sort": 9,
        "count": 1,
        "plan": 0.2,
        "exchange": 9,
        "finish": 0.3,
    },
)
