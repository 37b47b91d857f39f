"""How a kernel travels from the client to the workers."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle

from fpmdask.errors import KernelError
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
            _check_takes_units(kernel)
    try:
        code = cloudpickle.dumps(kernel)
    except Exception as error:
        raise KernelError(
            f"kernel {name} cannot be sent to the workers ({error}); "
            "make what it needs inside setup()"
        ) from error
    digest = hashlib.sha256(code).hexdigest()[:16]
    return {"name": name, "parameters": parameters, "code": code, "digest": digest}


def _check_takes_units(function: Any) -> None:
    """Raise at once if the function cannot be called with one argument."""
    try:
        inspect.signature(function).bind(1)
    except TypeError as error:
        raise KernelError(
            f"{function!r} cannot be called with the number of units ({error}); "
            "a kernel function takes one argument"
        ) from error
    except ValueError:
        return  # built in, without a signature
