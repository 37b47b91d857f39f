"""By when all workers end with help: by its definition, and found once for all that help alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmdask.apps.matmul.stealing import Helpers, level_of

PACES, TIMES = st.floats(0.1, 100), st.floats(0, 50)
PAIRS = st.tuples(PACES, TIMES)


@given(givers=st.lists(PAIRS, min_size=1, max_size=9), helpers=st.lists(PAIRS, max_size=9))
def test_what_the_givers_lack_at_the_level_the_helpers_have_done(givers, helpers):
    level = level_of(givers, helpers)
    left = sum(pace * max(0.0, end - level) for pace, end in givers)
    done = sum(pace * max(0.0, level - begin) for pace, begin in helpers)
    assert done == pytest.approx(left, rel=1e-6, abs=1e-6)


def one_by_one(givers, able, helper):
    """Return the level with `helper`: all for whom it is not worth while drop out by halves."""
    helping = set(able)
    while True:
        level = level_of(givers, [able[w][:2] for w in sorted(helping)])
        idle = [
            (able[w][0], w)
            for w in helping - {helper}
            if able[w][0] * (level - able[w][1]) < able[w][2]
        ]
        if not idle:
            return level
        helping -= {w for _, w in sorted(idle)[: (len(idle) + 1) // 2]}


ABLE = st.dictionaries(
    st.sampled_from("abcdefghij"),
    st.tuples(st.sampled_from([1.0, 2.0, 5.0]), st.floats(0, 20), st.floats(1, 60)),
    min_size=1,
)


@given(givers=st.lists(PAIRS, min_size=1, max_size=5), able=ABLE)
def test_the_level_of_each_helper_is_that_of_those_it_is_worth_while_for(givers, able):
    helpers = Helpers(givers, able)
    for helper in able:
        expected = one_by_one(givers, able, helper)
        assert helpers.level_with(helper) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_helpers_that_it_is_worth_while_for_share_one_search():
    searches = []

    class Counted(Helpers):
        def _level(self, always):
            searches.append(always)
            return super()._level(always)

    able = {f"w{n}": (1.0 + n % 4, 0.5, 1.0) for n in range(200)}
    helpers = Counted([(2.0, 1000.0)] * 50, able)
    assert len({helpers.level_with(helper) for helper in able}) == 1
    assert searches == [None]
