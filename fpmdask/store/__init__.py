"""Models on disk or object storage: versioned JSON by fsspec, for other clusters and later ones."""

from fpmdask.store.document import Unreadable as Unreadable
from fpmdask.store.store import ModelStore as ModelStore
from fpmdask.store.store import Saved as Saved
