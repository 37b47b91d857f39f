"""`ModelStore`: models that outlive their scheduler, in a folder that fsspec reaches."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import fpmdask
from fpmdask.runtime.known_models import Known, KnownModel
from fpmdask.storage import said
from fpmdask.store.document import (
    Document,
    Unreadable,
    has,
    known_of,
    merged,
    oldest_of,
    parsed,
    path_of,
    without,
)
from fpmdask.store.files import Files

# Points that are older are not loaded: machines change.
MOST_AGE_SECONDS = 180 * 86400.0
# Another cluster may write the same document at this moment: it is read, and written, again.
TRIES = 20


@dataclass(frozen=True)
class Saved:
    """What `ModelStore.save` has done.

    Attributes
    ----------
    documents : int
        Written.
    problems : tuple of str
        Documents that were left alone, and why.
    """

    documents: int
    problems: tuple[str, ...]


class ModelStore:
    """Models in a folder, local or on object storage: one JSON document per kernel and hardware.

    Parameters
    ----------
    url
        A path, or a URL that fsspec knows (``s3://bucket/models``, ``memory://models``).
    **options
        Of its file system (credentials, endpoint).

    Notes
    -----
    A document is replaced as a whole: a process that is killed while it writes leaves the one
    before. Two clusters that write the same document merge what they have, worker by worker; where
    both know a worker the last one counts. Local ones wait for each other; S3 writes a document
    only if it is as it was read (compare-and-swap by its ETag), up to `TRIES` times. Other object
    storage has no such condition: there what another overwrites at that moment is put in again,
    unless it is overwritten after that was looked at. A document that is damaged, of another
    version, or not what its path says is left alone, and named in a warning. Never pickle.

    Examples
    --------
    >>> from fpmdask.models import PiecewiseLinearModel
    >>> from fpmdask.runtime.identity import Fingerprint
    >>> hardware = Fingerprint("cpu", "blas", "core", 1, 1, None, 10**9)
    >>> model = PiecewiseLinearModel.from_points([100, 200], [1.0, 4.0])
    >>> store = ModelStore("memory://of-a-doctest")
    >>> store.save([KnownModel("alpha", "sort.local", "numpy", "{}", hardware, True, model)])
    Saved(documents=1, problems=())
    >>> [(one.worker, one.model == model) for one in store.load()]
    [('alpha', True)]
    """

    def __init__(self, url: str | os.PathLike[str], **options: Any) -> None:
        self._files = Files(url, options)

    @property
    def url(self) -> str:
        """Where it is."""
        return self._files.url

    def load(self, most_age_seconds: float | None = MOST_AGE_SECONDS) -> list[KnownModel]:
        """Return all models; of what cannot be read one warning tells.

        Parameters
        ----------
        most_age_seconds
            Points that are older are left out; None: none are.
        """
        found, problems = self.read(most_age_seconds)
        if problems:
            warnings.warn(_warning(self.url, problems), stacklevel=2)
        return found

    def read(
        self, most_age_seconds: float | None = MOST_AGE_SECONDS
    ) -> tuple[list[KnownModel], list[str]]:
        """Return all models, and what cannot be read and why, as `load` without warnings."""
        found, problems = self.known(most_age_seconds)
        return [one for one in found if isinstance(one, KnownModel)], problems

    def known(
        self, most_age_seconds: float | None = MOST_AGE_SECONDS
    ) -> tuple[list[Known], list[str]]:
        """Return all models and machines of MHETA's, and what cannot be read and why."""
        oldest = oldest_of(datetime.now(UTC), most_age_seconds)
        found: list[Known] = []
        documents, problems = self.documents()
        for document in documents.values():
            found += known_of(document, oldest)
        return found, problems

    def documents(self) -> tuple[dict[str, Document], list[str]]:
        """Return path → document as plain data, and what cannot be read and why."""
        found, problems = {}, []
        # of other versions, too, so that they are named
        for path in self._files.names():
            try:
                document = self._document(path)
            except Unreadable as error:
                problems.append(str(error))
                continue
            if document is not None:
                found[path] = document
        return found, problems

    def save(self, models: Iterable[Known]) -> Saved:
        """Put models and machines in; those of other workers stay.

        Returns
        -------
        Saved
            How many documents were written; those that cannot be read are left alone.
        """
        of_path: dict[str, list[Known]] = {}
        for one in models:
            of_path.setdefault(path_of(one), []).append(one)
        written, problems = 0, []
        for path, own in of_path.items():
            try:
                with self._files.alone(path):
                    written += self._save(path, own)
            except Unreadable as error:
                problems.append(str(error))
        return Saved(written, tuple(problems))

    def _save(self, path: str, models: list[Known]) -> bool:
        """Put models into a document; tell whether it was written."""
        now = datetime.now(UTC)
        oldest = oldest_of(now, MOST_AGE_SECONDS)
        for number in range(TRIES):
            tag, before = self._files.tag(path), self._document(path)  # in this order
            if has(before, models, oldest):
                return number > 0
            document = merged(before, models, now, fpmdask.__version__, oldest)
            if self._write(path, document, tag) and self._files.compares:
                return True
        if self._files.compares:
            raise Unreadable(f"{path} is written by others all the time; try again")
        return True

    def forget(self, kernel: str | None = None, worker: str | None = None) -> int:
        """Remove the models of a kernel and a worker, by name, None for all; return how many.

        What cannot be read is left alone; one warning tells of it.
        """
        count = 0
        documents, problems = self.documents()
        for path in documents:
            try:
                with self._files.alone(path):
                    count += self._forget(path, kernel, worker)
            except Unreadable as error:  # damaged since
                problems.append(str(error))
        if problems:
            warnings.warn(_warning(self.url, problems), stacklevel=2)
        return count

    def _forget(self, path: str, kernel: str | None, worker: str | None) -> int:
        for _ in range(TRIES):
            tag, document = self._files.tag(path), self._document(path)  # in this order
            if document is None or kernel not in (None, document["kernel"]):
                return 0
            names = [name for name in document["workers"] if worker in (None, name)]
            for name in names:
                document = without(document, name)
            if not document["workers"]:
                self._files.remove(path)
                return len(names)
            if not names or self._write(path, document, tag):
                return len(names)
        raise Unreadable(f"{path} is written by others all the time; try again")

    def _document(self, path: str) -> Document | None:
        try:
            text = self._files.read(path)
        except OSError as error:
            raise Unreadable(f"{path} cannot be read: {said(error)}") from error
        return None if text is None else parsed(text, path)

    def _write(self, path: str, document: Document, tag: str | None) -> bool:
        """Write a document if it is still as it was with this tag; tell whether."""
        text = json.dumps(document, indent=1, sort_keys=True, allow_nan=False)
        return self._files.compare_and_swap(path, text.encode(), tag)

    def __repr__(self) -> str:
        return f"<ModelStore {self.url}>"


def _warning(url: str, problems: list[str]) -> str:
    return f"{len(problems)} documents of {url} were left alone: {'; '.join(problems)}"
