"""The same number of units for every worker."""

import numpy as np

from fpmdask.partition.validate import IntArray, check_units, check_workers


def even(units: float, workers: int) -> IntArray:
    """Return an even distribution; the first workers get the units that are left over.

    Parameters
    ----------
    units : int
        From 1 to 2**52; fewer units than workers leave the last workers without.
    workers : int
        At least 1.

    Returns
    -------
    ndarray of int64
        Units per worker, summing to `units`.

    Raises
    ------
    PartitionError
        If either is not a whole number of at least 1.

    Notes
    -----
    O(p) for p workers.

    Examples
    --------
    >>> even(10, 4)
    array([3, 3, 2, 2])
    """
    total, count = check_units(units), check_workers(workers)
    share, rest = divmod(total, count)
    return share + (np.arange(count, dtype=np.int64) < rest)
