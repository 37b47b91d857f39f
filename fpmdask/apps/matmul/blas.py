"""C = A·B + β·C in place, without the GIL and without temporaries."""

import ctypes
import functools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from fpmdask.apps.matmul.spec import summed


def _loaded() -> Any:
    """Return SciPy's module of BLAS routines, without the rest of ``scipy.linalg`` where possible.

    The extension module needs nothing of its package, whose import takes 0.1 s of a whole core: on
    a tenth of one, a second before the first product.
    """
    package = find_spec("scipy.linalg")
    places = [] if package is None else package.submodule_search_locations or []
    name = "scipy.linalg.cython_blas"
    spec = PathFinder.find_spec(name, list(places))
    if name in sys.modules or spec is None or spec.loader is None:
        return import_module(name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Loaded here and not at the first product: threadpoolctl only limits libraries that are loaded, and
# SciPy's BLAS is another library than NumPy's.
cython_blas = _loaded()

Array = npt.NDArray[Any]

# dtype character: (routine, real numbers per element)
_ROUTINES = {"f": ("sgemm", 1), "d": ("dgemm", 1), "F": ("cgemm", 2), "D": ("zgemm", 2)}
_INT_MAX = 2 ** (8 * ctypes.sizeof(ctypes.c_int) - 1) - 1
# Temporary of one row band where there is no BLAS: it should stay in the last-level cache.
_BAND_NBYTES = 4 << 20


def gemm_accumulate(a: Array, b: Array, c: Array, *, beta: complex = 1.0, threads: int = 1) -> None:
    """Compute ``c = a @ b + beta * c`` in place.

    Parameters
    ----------
    a, b
        Operands of shape (M, K) and (K, N), of any numeric dtype. Any row slice, column slice or
        transpose of a C-ordered array is used as it lies; other strides, and operands of another
        dtype than ``c``, are copied first, as ``np.matmul`` does.
    c
        Result of shape (M, N), writeable, whose dtype is that of ``a @ b``, or float32 where that
        is float16. Slices and transposes of C-ordered arrays are updated where they lie.
    beta
        What the old ``c`` is multiplied by. With 0 it is not read, as in BLAS, so that it may be
        uninitialised.
    threads
        Threads over rows, only for dtypes without a BLAS routine (integers, bool, float16,
        longdouble). The threads of BLAS are set by the caller through threadpoolctl.

    Raises
    ------
    TypeError
        For dtypes that are not numeric, or when ``c`` has not the dtype of the product, or cannot
        hold ``beta``.
    ValueError
        For shapes that do not match, or ``c`` read-only.

    Notes
    -----
    2·M·N·K operations (8 for complex numbers). float32, float64, complex64 and complex128 use the
    Fortran BLAS that SciPy exports to Cython, called through ctypes, which releases the GIL for
    the time of the call (``scipy.linalg.blas.dgemm`` does not, and copies a strided ``c``). A
    row-major C is the column-major Cᵀ = Bᵀ·Aᵀ. Other dtypes, strides of ``c`` that BLAS cannot
    express and sizes beyond a C int take NumPy's path: the product of a few rows at a time into a
    temporary, then the addition, also without the GIL.

    SciPy's and NumPy's wheels each bring a BLAS; threadpoolctl lists and limits both.

    Examples
    --------
    >>> import numpy as np
    >>> a, b, c = np.ones((2, 3)), np.ones((3, 4)), np.ones((2, 8))
    >>> gemm_accumulate(a, b, c[:, 4:])
    >>> c[0].tolist()
    [1.0, 1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 4.0]
    """
    _check(a, b, c, beta, threads)
    if c.size == 0:
        return
    if a.shape[1] == 0:
        _scale(c, beta)
        return
    a, b = _apart(a, c), _apart(b, c)
    if not uses_blas(c.dtype) or max(*a.shape, *b.shape) > _INT_MAX:
        _by_numpy(a, b, c, beta, threads)
    elif _leading(c) is not None:
        _by_blas(a, b, c, beta)
    elif _leading(c.T) is not None:
        _by_blas(b.T, a.T, c.T, beta)
    else:
        _by_numpy(a, b, c, beta, threads)


def uses_blas(dtype: npt.DTypeLike) -> bool:
    """Tell whether products of this dtype are made by BLAS.

    Parameters
    ----------
    dtype
        Anything that NumPy understands as a dtype.

    Returns
    -------
    bool
        True for float32, float64, complex64 and complex128 in the machine's byte order.

    Examples
    --------
    >>> uses_blas("float64"), uses_blas("int64")
    (True, False)
    """
    found = np.dtype(dtype)
    return found.char in _ROUTINES and found.isnative


def copied(operand: Array, dtype: npt.DTypeLike) -> bool:
    """Tell whether `gemm_accumulate` needs a copy of an operand, for a ``c`` of this dtype.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.ones((4, 4))
    >>> [copied(x, "f8") for x in (a, a.T, a[:, 1:3], a[:, ::2], a.astype("f4"))]
    [False, False, False, True, True]
    """
    lies = _leading(operand) is not None or _leading(operand.T) is not None
    return operand.dtype != dtype or not lies


def _check(a: Array, b: Array, c: Array, beta: complex, threads: int) -> None:
    """Refuse what cannot be computed, before anything is written."""
    if not (a.ndim == b.ndim == c.ndim == 2):
        raise ValueError(f"a, b and c must be matrices, found {a.ndim}, {b.ndim}, {c.ndim} axes")
    if a.shape[1] != b.shape[0] or c.shape != (a.shape[0], b.shape[1]):
        raise ValueError(
            f"shapes do not match: a {a.shape} @ b {b.shape} cannot be added to c {c.shape}"
        )
    for name, array in (("a", a), ("b", b), ("c", c)):
        if array.dtype.kind not in "biufc":
            raise TypeError(f"{name} has dtype {array.dtype}; convert it to a numeric dtype first")
    wanted = np.result_type(a.dtype, b.dtype)
    if c.dtype.newbyteorder("=") not in (wanted, summed(wanted)):
        raise TypeError(f"c has dtype {c.dtype}, but {a.dtype} @ {b.dtype} gives {wanted}")
    if not c.flags.writeable:
        raise ValueError("c is read-only; pass a writeable array")
    if np.iscomplexobj(beta) and c.dtype.kind != "c":
        raise TypeError(f"beta is {beta!r}, which {c.dtype} cannot hold")
    if c.dtype.kind in "biu" and beta not in (0, 1):
        raise TypeError(f"beta is {beta!r}; with {c.dtype} it must be 0 or 1")
    if threads < 1:
        raise ValueError(f"threads is {threads}, it must be at least 1")


def _scale(c: Array, beta: complex) -> None:
    """Multiply `c` by `beta`; with 0 without reading it."""
    if beta == 0:
        c[...] = 0
    elif beta != 1:
        np.multiply(c, beta, out=c)


def _apart(operand: Array, c: Array) -> Array:
    """Return the operand, or its copy where it overlaps `c`."""
    return operand.copy() if np.shares_memory(operand, c) else operand


def _leading(array: Array) -> int | None:
    """Return the leading dimension of a row-major matrix in elements, None if it is not one."""
    rows, columns = array.shape
    row_stride, column_stride = array.strides
    if not (array.dtype.isnative and array.flags.aligned):
        return None
    # NumPy's strides along an axis of length 1 mean nothing.
    if columns > 1 and column_stride != array.itemsize:
        return None
    if rows == 1:
        return int(columns)
    leading, rest = divmod(int(row_stride), array.itemsize)
    return leading if rest == 0 and columns <= leading <= _INT_MAX else None


def _operand(array: Array, dtype: np.dtype[Any]) -> tuple[Array, bytes, int]:
    """Return the matrix as BLAS takes it: its data, the transpose flag, the leading dimension.

    A row-major matrix is, to Fortran, its transpose, which is the one that Cᵀ = Bᵀ·Aᵀ needs.
    """
    if array.dtype != dtype:
        array = array.astype(dtype, order="C")
    leading = _leading(array)
    if leading is not None:
        return array, b"N", leading
    leading = _leading(array.T)
    if leading is not None:
        return array, b"T", leading
    copied = array.copy(order="C")
    return copied, b"N", copied.shape[1]


@functools.cache
def _routine(name: str) -> Callable[..., None]:
    """Return one of SciPy's Fortran BLAS routines as a foreign function that frees the GIL."""
    capsule = cython_blas.__pyx_capi__[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    signature = get_name(capsule)
    # A SciPy built with 64-bit integers would read beyond our C ints.
    if signature is None or signature.count(b", int *") != 6:
        raise RuntimeError(
            f"SciPy's {name} has the signature {signature!r}; C ints are expected: "
            "install a SciPy with the LP64 interface"
        )
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 13)
    return prototype(get_pointer(capsule, signature))


def _by_blas(a: Array, b: Array, c: Array, beta: complex) -> None:
    """Update the row-major `c` as the column-major Cᵀ = Bᵀ·Aᵀ + βCᵀ."""
    name, parts = _ROUTINES[c.dtype.char]
    a, flag_a, lda = _operand(a, c.dtype)
    b, flag_b, ldb = _operand(b, c.dtype)
    ldc = _leading(c) or c.shape[1]
    scalar = (ctypes.c_float if c.dtype.char in "fF" else ctypes.c_double) * parts
    one, scale = complex(1), complex(beta)
    flags = ctypes.create_string_buffer(flag_b + flag_a, 2)
    integers = (ctypes.c_int * 6)(c.shape[1], c.shape[0], a.shape[1], ldb, lda, ldc)
    n, m, k, ldb_at, lda_at, ldc_at = (
        ctypes.addressof(integers) + i * ctypes.sizeof(ctypes.c_int) for i in range(6)
    )
    alpha = scalar(*(one.real, one.imag)[:parts])
    beta_at = scalar(*(scale.real, scale.imag)[:parts])
    flags_at = ctypes.addressof(flags)
    _routine(name)(
        *(flags_at, flags_at + 1, n, m, k),
        *(ctypes.addressof(alpha), b.ctypes.data, ldb_at, a.ctypes.data, lda_at),
        *(ctypes.addressof(beta_at), c.ctypes.data, ldc_at),
    )


def _by_numpy(a: Array, b: Array, c: Array, beta: complex, threads: int) -> None:
    """Update `c` some rows at a time, each band's product in a temporary of bounded size."""
    rows = max(1, _BAND_NBYTES // max(1, c.shape[1] * c.itemsize))
    rows = max(1, min(rows, -(-c.shape[0] // threads)))

    def band(top: int) -> None:
        part = c[top : top + rows]
        product = np.matmul(a[top : top + rows], b)
        if beta == 0:
            part[...] = product
            return
        _scale(part, beta)
        np.add(part, product, out=part)

    tops = range(0, c.shape[0], rows)
    if threads == 1 or len(tops) == 1:
        for top in tops:
            band(top)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="gemm") as pool:
        list(pool.map(band, tops))
