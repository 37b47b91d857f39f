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


# The digest of code that is known by the name that its user gave: it may change.
NAMED = ""


def kernel_spec(kernel: KernelLike, known_as: str | None = None) -> dict[str, Any]:
    """Return how workers get the kernel: by name, or as bytes that only they open.

    Models of code are kept by its name and digest, or else by the name `known_as`.
    """
    if known_as is not None and isinstance(kernel, str | tuple):
        raise KernelError(f"found name={known_as!r} for the registered kernel {kernel!r}; omit it")
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
    advice = "make what it needs inside setup()"
    found = packed(name, kernel, f"kernel {name}", advice, known_as=known_as)
    return {**found, "parameters": parameters}


def packed(
    name: str,
    code: Any,
    what: str,
    advice: str = "make inside it what it needs",
    error: type[FpmdaskError] = KernelError,
    known_as: str | None = None,
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
    known_as
        By what models know it in the place of name and digest, also when the code has changed.

    Raises
    ------
    FpmdaskError
        If it cannot be sent, or the name is none: ``error``.
    """
    if known_as is not None and not (isinstance(known_as, str) and known_as):
        raise error(f"name = {known_as!r}; give a string that is not empty, or None")
    try:
        found = bytes(cloudpickle.dumps(code))
    except Exception as cause:
        raise error(f"{what} cannot be sent to the workers ({cause}); {advice}") from cause
    if known_as is not None:
        return {"name": known_as, "parameters": {}, "code": found, "digest": NAMED}
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
