"""The doctor's cures: they are for what is really missing."""

import pytest

from fpmdask.errors import LabError
from fpmdask.lab import checks

REFUSED = "Operation not permitted"
NO_MODULE = "Specified qdisc kind is unknown."


@pytest.fixture
def unshare_says(monkeypatch):
    """Return a function that sets why `unshare` fails, for all commands in it or for long ones."""

    def say(reason, *, always):
        def run(argv):
            if always or argv[2:] != ("true",):
                raise LabError(f"`unshare` failed: unshare failed: {reason}; the doctor says more")
            return ""

        monkeypatch.setattr(checks, "run", run)

    return say


@pytest.mark.parametrize("check", [checks._links, checks._tbf])
def test_who_may_make_no_namespace_is_told_to_be_root(unshare_says, check):
    unshare_says(REFUSED, always=True)
    found = check()
    assert not found.ok
    assert found.found == REFUSED
    assert found.cure.startswith("run as root")
    assert "module" not in found.cure


@pytest.mark.parametrize("check", [checks._links, checks._tbf])
def test_what_fails_in_a_namespace_needs_a_module(unshare_says, check):
    unshare_says(NO_MODULE, always=False)
    found = check()
    assert found.found == NO_MODULE
    assert "load the kernel module" in found.cure


def test_nothing_needs_netem(unshare_says):
    unshare_says(REFUSED, always=True)
    assert checks._netem().ok
