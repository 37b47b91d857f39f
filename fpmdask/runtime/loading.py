"""Where the code of loading is: runs that hold workers while their client has inputs computed."""

from fpmdask.runtime.app import App

APP = App(
    "load",
    "fpmdask.runtime.coordinator.client_stages:run",
    "fpmdask.runtime.coordinator.client_stages:check",
    request="fpmdask.runtime.wire:Request",
    messages="fpmdask.runtime.wire:STAGES",
)
