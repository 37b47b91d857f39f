"""Declared messages: what is refused where it arrives."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

import dask.array as da
import pytest
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps import APPS
from fpmdask.errors import CoordinatorError
from fpmdask.runtime.app import code, find
from fpmdask.runtime.wire import Request, check_message


class Inner(TypedDict):
    name: str


class Message(TypedDict):
    whole: int
    seconds: float
    yes: bool
    text: str | None
    names: Sequence[str]
    rows: Mapping[str, int]
    way: Literal["up", "down"]
    inner: Inner
    anything: NotRequired[Any]


GOOD = {
    "whole": 3,
    "seconds": 1,
    "yes": True,
    "text": None,
    "names": ("a", "b"),
    "rows": {"a": 1},
    "way": "up",
    "inner": {"name": "x"},
}


def test_what_is_as_declared_is_taken():
    check_message(Message, GOOD, "the message")
    check_message(Message, {**GOOD, "anything": object(), "text": "t"}, "the message")
    check_message(Message, {"whole": 1}, "the message", partial=True)


@pytest.mark.parametrize(
    ("part", "value", "says"),
    [
        ("whole", 1.5, "the message's whole is a float; it must be int"),
        ("whole", True, "the message's whole is a bool; it must be int"),
        ("seconds", "1", "the message's seconds is a str; it must be float"),
        ("yes", 1, "the message's yes is an int; it must be bool"),
        ("text", b"t", "the message's text is a bytes; it must be str | None"),
        ("names", "ab", "the message's names is a str; it must be .*Sequence"),
        ("names", [1], r"the message's names\[0\] is an int; it must be str"),
        ("rows", {"a": "b"}, r"the message's rows\['a'\] is a str; it must be int"),
        ("way", "left", "the message's way is a str; it must be Literal"),
        ("inner", {}, "the message's inner lacks name"),
        ("inner", {"name": None}, "the message's inner.name is None; it must be str"),
        ("other", 1, "the message has no part other; parts are whole, .*, anything"),
    ],
)
def test_what_is_not_as_declared_is_refused_by_its_name(part, value, says):
    for partial in (False, True):
        with pytest.raises(CoordinatorError, match=says):
            check_message(Message, {**GOOD, part: value}, "the message", partial=partial)


def test_what_is_missing_is_refused_unless_it_is_partial():
    with pytest.raises(CoordinatorError, match="the message lacks inner, names, rows"):
        check_message(
            Message,
            {k: GOOD[k] for k in GOOD if k not in ("inner", "names", "rows")},
            "the message",
        )
    with pytest.raises(CoordinatorError, match="the message is a list; it must be a mapping"):
        check_message(Message, [], "the message")


@pytest.mark.parametrize("app", APPS)
def test_every_application_declares_its_request(app):
    kind = code(find(app, APPS).request, app)
    assert kind.__annotations__.keys() >= Request.__annotations__.keys()
    with pytest.raises(CoordinatorError, match=f"the request of {app} lacks .*measuring.*workers"):
        check_message(kind, {}, f"the request of {app}")


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_client_with_a_malformed_request_gets_an_error_and_no_run(c, s, worker):
    balancer = await fpmdask.Balancer(c)
    measuring = {
        "epsilon": 0.1,
        "thorough": False,
        "max_rounds": 3,
        "policy": None,
        "deadline": 9.0,
    }
    requests = [
        ({}, "the request of sort lacks measuring, sort, workers"),
        ({"workers": "all"}, "the request of sort's workers is a str"),
        ({"workers": None, "measuring": measuring, "sort": {}}, "measuring lacks hang"),
        ({"workers": None, "keys": 1}, "the request of sort has no part keys"),
    ]
    for request, says in requests:
        with pytest.raises(CoordinatorError, match=says):
            await c.scheduler.fpmdask_start(app="sort", client=c.id, spec=request)
    assert not s.plugins["fpmdask"].runs
    found = await c.compute(await balancer.sort(da.from_array([3, 1, 2], chunks=2)))
    assert found.tolist() == [1, 2, 3]
