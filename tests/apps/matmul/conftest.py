"""Shared by the tests of the multiplication."""

from dataclasses import replace

import pytest

from fpmdask.apps.matmul import distribute


@pytest.fixture
def short_rounds(monkeypatch):
    """In-process workers share one interpreter: their speeds mean nothing, so measure briefly."""
    brief = replace(distribute.TIMING, min_seconds=0.002, budget_seconds=0.004)
    monkeypatch.setattr(distribute, "TIMING", brief)
