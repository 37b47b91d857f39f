"""Where the code of this application is: its stages are the client's, its runs those of "sort"."""

from fpmdask.runtime.app import App

APP = App(
    "frames",
    "fpmdask.runtime.coordinator.client_stages:run",
    "fpmdask.runtime.coordinator.client_stages:check",
    request="fpmdask.runtime.wire:Request",
    messages="fpmdask.runtime.wire:STAGES",
)
