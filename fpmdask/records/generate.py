"""Files of random records: seeded, in parallel, with their checksum."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from fpmdask.errors import RecordsError
from fpmdask.rawio import write_at
from fpmdask.records.format import KEY_NBYTES, RECORD_NBYTES, Records, checksum

KINDS = ("uniform", "ascii", "skewed", "duplicates")
# Records that are made at once, each such block from a seed of its own.
BLOCK = 1 << 16
# Half of the skewed records begin with these bytes.
PREFIX = b"fpmdask"
# Different keys among the duplicates.
DISTINCT = 1000
PRINTABLE = 32, 127


@dataclass(frozen=True)
class Written:
    """Files that were written, and the sum of the CRC-32 of all their records."""

    paths: tuple[str, ...]
    records: int
    checksum: int


def write_records(
    target: str | os.PathLike[str],
    sizes: Iterable[int],
    *,
    kind: str = "uniform",
    seed: int = 0,
    threads: int | None = None,
) -> Written:
    """Write files ``records-00000`` … of random records into a folder.

    Parameters
    ----------
    target : path
        A local folder; made if it is not there. Files of these names must not be in it.
    sizes : iterable of int
        Records in each file, >= 0.
    kind : str
        ``"uniform"``: keys of random bytes. ``"ascii"``: of printable ones. ``"skewed"``: half of
        the keys begin with the same seven bytes. ``"duplicates"``: a thousand different keys.
    seed : int
        >= 0. The same seed, kind and sizes make the same files, however many threads do.
    threads : int, optional
        As many as the machine has processors by default.

    Returns
    -------
    Written
        ``paths``, ``records``, ``checksum``.

    Raises
    ------
    RecordsError
        For a size, kind or seed that cannot be, a file that is there already, or where a file
        cannot be written; none of the call's files stays then.

    Notes
    -----
    After its key a record has its number, eight bytes, most significant first, and 82 random bytes.
    O(n).

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = write_records(folder, [1000, 500], kind="ascii", seed=1)
    >>> found.records, len(found.paths)
    (1500, 2)
    """
    if kind not in KINDS:
        raise RecordsError(f"kind = {kind!r}; one of {', '.join(KINDS)} is made")
    counts = list(sizes) if isinstance(sizes, Iterable) else []
    if not counts or not all(map(_is_count, counts)):
        raise RecordsError(f"sizes = {sizes!r}; give one number of records, >= 0, per file")
    if not _is_count(seed):
        raise RecordsError(f"seed = {seed!r}; give an int >= 0")
    if threads is not None and not (_is_count(threads) and threads):
        raise RecordsError(f"threads = {threads!r}; give an int >= 1")
    folder = Path(target)
    paths = [folder / f"records-{n:05d}" for n in range(len(counts))]
    for path in paths:
        if path.exists():
            raise RecordsError(f"{path} exists; remove it, or write to another folder")
    offsets = [0, *accumulate(map(int, counts))]
    made: list[Path] = []

    def write(number: int) -> int:
        total = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(paths[number], flags, 0o666)
        made.append(paths[number])
        try:
            for first in range(0, int(counts[number]), BLOCK):
                count = min(BLOCK, int(counts[number]) - first)
                random = np.random.default_rng([seed, number, first])
                records = _made(random, count, offsets[number] + first, kind)
                total += checksum(records)
                write_at(descriptor, first * RECORD_NBYTES, records)
        finally:
            os.close(descriptor)
        return total

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
            sums = list(pool.map(write, range(len(paths))))
    except BaseException as error:
        for path in made:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise RecordsError(
                f"cannot write {error.filename or folder}: {error.strerror or error}; nothing of "
                "this call is left there"
            ) from error
        raise
    return Written(tuple(map(str, paths)), offsets[-1], sum(sums))


def _is_count(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return int(value) >= 0


def _made(random: np.random.Generator, count: int, first: int, kind: str) -> Records:
    records = np.frombuffer(bytearray(random.bytes(count * RECORD_NBYTES)), np.uint8)
    records = records.reshape(count, RECORD_NBYTES)
    key = records[:, :KEY_NBYTES]
    if kind == "ascii":
        key[...] = random.integers(*PRINTABLE, key.shape, np.uint8)
    elif kind == "skewed":
        key[random.random(count) < 0.5, : len(PREFIX)] = np.frombuffer(PREFIX, np.uint8)
    elif kind == "duplicates":
        # the same keys in every block
        known = np.random.default_rng(DISTINCT).integers(0, 256, (DISTINCT, KEY_NBYTES), np.uint8)
        key[...] = known[random.integers(0, DISTINCT, count)]
    numbers = np.arange(first, first + count, dtype=">u8")
    records[:, KEY_NBYTES : KEY_NBYTES + 8] = numbers.view(np.uint8).reshape(count, 8)
    return records
