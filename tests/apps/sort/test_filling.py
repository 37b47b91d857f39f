"""Pieces of several workers come into their targets."""

from hypothesis import given
from hypothesis import strategies as st

from fpmdask.sorting.filling import Filling


@given(st.lists(st.lists(st.integers(1, 9), max_size=5), max_size=4), st.randoms())
def test_a_target_is_complete_once_with_its_last_key(lists, random):
    """Targets of several peers, whose keys come in their order, in pieces of any length."""
    coming = {peer: [*enumerate(counts)] for peer, counts in enumerate(lists)}
    missing = {n: sum(own[n] for own in lists if n < len(own)) for n in range(5)}
    complete = []
    filling = Filling(coming, complete.append)
    left = {
        peer: [target for target, count in own for _ in range(count)]
        for peer, own in coming.items()
    }
    while any(left.values()):
        peer = random.choice([peer for peer, keys in left.items() if keys])
        count = random.randint(1, len(left[peer]))
        for target in left[peer][:count]:
            missing[target] -= 1
        del left[peer][:count]
        before = len(complete)
        filling.add(peer, count)
        assert all(not missing[target] for target in complete[before:])
    assert sorted(complete) == [n for n in range(5) if any(n < len(own) for own in lists)]
