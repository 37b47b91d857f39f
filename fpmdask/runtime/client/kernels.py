"""How a kernel travels from the client to the workers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle

from fpmdask.errors import FpmdaskError, KernelError
from fpmdask.runtime.client.code_digest import code_digest
from fpmdask.timing import FunctionKernel, Kernel, WorkerContext, as_kernel

KernelLike = str | tuple[str, Mapping[str, Any]] | Kernel | Callable[[int], object]


def kernel_spec(kernel: KernelLike) -> dict[str, Any]:
    """Return how workers get the kernel: by name, or as bytes that only they open."""
    if isinstance(kernel, str):
        return {"name": kernel, "parameters": {}}
    if isinstance(kernel, tuple):
        try:
            name, parameters = kernel
            parameters = dict(parameters)
        except (TypeError, ValueError) as error:
            raise KernelError(
                f"found {kernel!r}; a registered kernel is a pair (name, parameters)"
            ) from error
        try:
            json.dumps(parameters, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise KernelError(
                f"the parameters of kernel {name} are not JSON values ({error}); "
                "use str, bool, int, finite float, list, dict, None"
            ) from error
        return {"name": str(name), "parameters": parameters}
    if isinstance(kernel, type):
        name, parameters = f"{kernel.__module__}.{kernel.__qualname__}", {}
    else:
        opened = as_kernel(kernel, WorkerContext(name="client"))
        name, parameters = opened.name, dict(opened.parameters)
        if isinstance(opened, FunctionKernel):
            check_takes(kernel, [1], "number of units")
    found = packed(name, kernel, f"kernel {name}", "make what it needs inside setup()")
    return {**found, "parameters": parameters}


def packed(
    name: str,
    code: Any,
    what: str,
    advice: str = "make inside it what it needs",
    error: type[FpmdaskError] = KernelError,
) -> dict[str, Any]:
    """Return a user's code as workers get it: bytes that only they open, known by a digest.

    Parameters
    ----------
    name
        Of the kernel, in models and reports.
    code
        Any object that cloudpickle takes.
    what, advice, error
        What it is called in messages, what to do, and what is raised.

    Raises
    ------
    FpmdaskError
        If it cannot be sent: ``error``.
    """
    try:
        found = bytes(cloudpickle.dumps(code))
    except Exception as cause:
        raise error(f"{what} cannot be sent to the workers ({cause}); {advice}") from cause
    return {"name": name, "parameters": {}, "code": found, "digest": code_digest(code)}


def check_takes(function: Any, arguments: Sequence[Any], what: str) -> None:
    """Raise at once if the function cannot be called with these arguments.

    Raises
    ------
    KernelError
        That says what it has to take.
    """
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        count = len(arguments)
        raise KernelError(
            f"{function!r} cannot be called with the {what} ({error}); a kernel function takes "
            f"{'one argument' if count == 1 else f'{count} arguments'}"
        ) from error
    except ValueError:
        return  # built in, without a signature
