"""Kernels by name: every worker picks its own implementation."""

import re
from importlib import import_module
from typing import Any

from fpmdask.errors import KernelError
from fpmdask.timing.kernel import Kernel, KernelFactory, WorkerContext, checked

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

# Strings are "module:attribute", loaded on first use.
_registered: dict[str, KernelFactory | str] = {
    "emulated": "fpmdask.timing.emulated:EmulatedKernel",
}


def register_kernel(name: str, factory: KernelFactory | str) -> None:
    """Register what makes a kernel; the last registration of a name counts.

    Parameters
    ----------
    name : str
        Letters, digits, ``.``, ``_`` and ``-``, starting with a letter or a digit.
    factory : callable or str
        Called ``factory(context, **parameters)``; or ``"module:attribute"``, imported on first use.

    Raises
    ------
    KernelError
        If the name or the string is malformed, or `factory` cannot be called.

    Examples
    --------
    >>> register_kernel("my.panel-update", "my_package.kernels:PanelUpdate")
    >>> "my.panel-update" in registered_kernels()
    True
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise KernelError(
            f"{name!r} is not a kernel name; use letters, digits, '.', '_' and '-', "
            "starting with a letter or a digit"
        )
    if isinstance(factory, str):
        if not _TARGET.fullmatch(factory):
            raise KernelError(
                f"kernel {name!r}: {factory!r} is not of the form 'module:attribute', "
                "for example 'my_package.kernels:PanelUpdate'"
            )
    elif not callable(factory):
        raise KernelError(
            f"kernel {name!r}: a {type(factory).__name__} cannot be called; give a function or "
            "class called as factory(context, **parameters), or 'module:attribute'"
        )
    _registered[name] = factory


def registered_kernels() -> tuple[str, ...]:
    """Return the known names, sorted.

    Examples
    --------
    >>> "emulated" in registered_kernels()
    True
    """
    return tuple(sorted(_registered))


def kernel_factory(name: str) -> KernelFactory:
    """Return what makes the kernel of that name on this worker, importing it if need be.

    Parameters
    ----------
    name : str
        As registered.

    Returns
    -------
    callable
        Called ``factory(context, **parameters)``.

    Raises
    ------
    KernelError
        If the name is unknown or its target cannot be imported.
    """
    found = _registered.get(name)
    if found is None:
        raise KernelError(
            f"no kernel {name!r}; known are {', '.join(registered_kernels())}. Register it on "
            "every worker, in a preload: fpmdask.timing.register_kernel(name, factory)"
        )
    if not isinstance(found, str):
        return found
    module, _, attribute = found.partition(":")
    try:
        target: Any = import_module(module)
        for part in attribute.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        raise KernelError(
            f"kernel {name!r}: cannot import {found!r} ({error}); install it on this worker "
            "or register another factory"
        ) from error
    register_kernel(name, target)
    return kernel_factory(name)


def make_kernel(name: str, context: WorkerContext, **parameters: object) -> Kernel:
    """Make the registered kernel of that name for one worker.

    Parameters
    ----------
    name : str
        As registered.
    context : WorkerContext
        The worker that will run it.
    **parameters
        JSON values, for the factory.

    Returns
    -------
    Kernel

    Raises
    ------
    KernelError
        If the name is unknown, or what the factory makes is not a kernel.
    """
    return checked(kernel_factory(name)(context, **parameters), f"the factory of {name!r}")
