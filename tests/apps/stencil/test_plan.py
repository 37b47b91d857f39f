"""Who has which rows, how often halos are exchanged: no worker has fewer rows than a halo."""

from hypothesis import given
from hypothesis import strategies as st

from fpmdask.apps.stencil.neighbours import neighbours, spans_of
from fpmdask.apps.stencil.plan import Speed, exchange_every, revised, shared
from fpmdask.models import ConstantModel


@given(
    st.integers(1, 200), st.lists(st.floats(0.01, 100), min_size=1, max_size=7), st.integers(1, 9)
)
def test_shares_are_none_or_enough(units, speeds, least):
    units = max(units, least)
    limits = [float("inf")] * len(speeds)
    shares = shared(units, [*map(ConstantModel, speeds)], limits, least)
    assert sum(shares) == units
    assert all(share == 0 or share >= least for share in shares)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.booleans())
def test_neighbours_see_each_other(sizes, wraps):
    spans = spans_of({str(n): size for n, size in enumerate(sizes)})
    for worker, (low, high) in spans.items():
        above, below = neighbours(spans, worker, wraps)
        if above is not None:
            assert neighbours(spans, above, wraps)[1] == worker
            assert spans[above][1] in (low, sum(sizes))
        if below is not None:
            assert neighbours(spans, below, wraps)[0] == worker
            assert spans[below][0] in (high, 0)
        if low == high:
            assert above is below is None


def test_rows_move_only_where_that_pays():
    shares = {"a": 50, "b": 50}
    told = {"a": Speed(1.0, 0.0, 1e-3), "b": Speed(4.0, 0.0, 1e-3)}
    limits = {"a": 100.0, "b": 100.0}

    def found(*given, **more):
        return revised(shares, *given, **more).shares

    # 120 s less in each iteration, for 160 rows of 1000 bytes, at most
    assert found(told, 2, 1000, limits, 1) == {"a": 80, "b": 20}
    assert found(told, 0, 1000, limits, 1) == shares
    assert found(told, 1, 100_000, limits, 1) == shares
    assert found(told, 1, 1000, {"a": 60.0, "b": 100.0}, 1) == shares
    assert found(told, 9, 1000, {"a": 60.0, "b": 100.0}, 1) == {"a": 60, "b": 40}
    assert found({**told, "b": Speed(1e-3, 0.0, 0.0)}, 9, 8, limits, 1, equal=True) == shares
    unknown = dict.fromkeys(shares, Speed(None, 0.0, 0.0))
    assert found(unknown, 9, 8, limits, 1) == shares


def test_messages_that_take_longer_than_what_others_save_are_not_sent():
    limits = {"a": 100.0, "b": 100.0}

    def found(shares, exchange, left=9, row=1.0, **more):
        told = {"a": Speed(0.5, exchange, 1e-6), "b": Speed(row, exchange, 1e-6)}
        return revised(shares, told, left, 8, limits, 1, depth=1, **more).shares

    newcomer, two = {"a": 100, "b": 0}, {"a": 50, "b": 50}
    assert found(newcomer, 60.0) == newcomer
    assert found(newcomer, 30.0)["b"] > 30, "messages come while rows are computed"
    # one in five iterations, with more rows to compute
    assert found(newcomer, 30.0, row=0.5)["b"] == 0
    assert found(newcomer, 30.0, row=0.5, most_every=5)["b"] > 30
    assert found(two, 60.0, alone=limits) == newcomer
    assert found(two, 60.0)["b"] > 30
    assert found(two, 60.0, alone={"a": 99.0})["b"] > 30
    assert found(two, 1.0, alone=limits)["b"] > 30
    assert found(two, 60.0, left=0, alone=limits) == two


def test_what_does_not_depend_on_the_rows_is_not_shared_out():
    """Each of two workers makes two calls of 20 s, a third one in their middle would make three."""
    shares, limits = {"a": 30, "c": 0, "b": 30}, dict.fromkeys("acb", 100.0)

    def found(call, rest=0.0, **more):
        one = Speed((2 * call + rest * 30) / 30, 0.0, 0.0, call, 30, 2)
        told = {"a": one, "b": one, "c": Speed(call / 30 + rest, 0.0, 0.0, call, 30, 1)}
        return revised(shares, told, 1000, 8, limits, 1, depth=1, **more).shares

    assert found(20.0) == shares
    assert found(20.0, 1.0) == shares
    assert found(1.0, 1.0) != shares
    assert found(0.0, 1.0) == {"a": 20, "c": 20, "b": 20}
    assert sum(found(1.0, 1.0).values()) == 60
    assert found(1.0, 1.0, stop=1e6) == shares
    # one that is alone makes one call, and does not know what that takes beside the rows
    alone = {"a": Speed(21.0 / 60, 0.0, 0.0, None, 60, 1), "c": Speed(20.5 / 30, 0, 0, 20.0, 30, 1)}
    two = {"a": 60, "c": 0}
    assert revised(two, alone, 1000, 8, limits, 1, depth=1).shares == two


def test_halos_come_less_often_where_calls_for_the_rows_at_the_ends_cost_much():
    own = {"a": 30, "b": 30}
    told = dict.fromkeys(own, Speed(2 * 0.02 / 30 + 1e-4, 0.0, 0.0, 0.02, 30, 2))
    assert exchange_every(told, own, 1, 64) == 14


def test_halos_for_several_iterations_come_at_once_where_messages_cost_more_than_rows():
    def every(exchange, row, shares=(40, 60), depth=1, most=64, worth=0.0, now=1):
        own = {str(n): rows for n, rows in enumerate(shares)}
        told = dict.fromkeys(own, Speed(row, exchange, 0.0))
        return exchange_every(told, own, depth, most, worth, now=now)

    assert every(0.1, 0.001) == 10
    assert every(0.1, 0.001, depth=4) == 5
    assert every(0.1, 1.0) == 1
    assert every(0.1, 0.001, shares=(7, 93)) == 7
    assert every(0.1, 0.001, shares=(100, 0)) == 1
    assert every(0.1, 0.001, depth=0) == 1
    assert every(9.9, 0.001, most=3) == 3
    assert every(0.1, 0.001, worth=0.08) == 10
    # it stays as it is where others are not worth new buffers
    assert every(0.1, 0.001, worth=0.01, now=8) == 8
    assert every(0.1, 0.001, worth=0.01, now=2) == 10
    assert every(0.1, 0.001, worth=0.01, now=64, most=9) == 9
    assert every(0.1, 0.001, worth=0.09) == 1
