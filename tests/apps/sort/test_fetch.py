"""Pieces from several peers at once."""

import asyncio
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmdask.apps.sort.fetch import AT_ONCE, Fetcher, Filling, PeersMissing, Wanted
from fpmdask.coordinator.channel import Channel, Channels


class Side:
    """As much of a worker's side as channels to other workers need."""

    def __init__(self):
        self.unreachable = set()

    @contextmanager
    def channel(self, peer, address):
        opened = Channel(address)
        try:
            yield opened
        finally:
            opened.close()


def with_owners(cutters, use):
    """Return what `use` returns for a fetcher from owners that are served while it goes on."""

    async def main():
        owners = {name: Channels("127.0.0.1", cut) for name, cut in cutters.items()}
        try:
            with Fetcher(Side(), "run", {n: one.address for n, one in owners.items()}) as fetcher:
                return await asyncio.to_thread(use, fetcher)
        finally:
            for one in owners.values():
                await one.close()

    return asyncio.run(main())


def wanted(*targets):
    return [Wanted("key", 0, target.size, (target.size,), target) for target in targets]


def test_pieces_of_each_peer_come_in_their_order():
    counts = {f"peer {n}": n + 1 for n in range(AT_ONCE + 3)}

    def owner(number):
        def cut(run, asked):
            pieces = [np.full((1, 5), 100.0 * number + at) for at in range(len(asked))]
            return {"dtypes": ["<f8"] * len(pieces)}, pieces

        return cut

    targets = {name: np.zeros((count, 5)) for name, count in counts.items()}
    heard = {name: [] for name in counts}

    def use(fetcher):
        items = {name: wanted(*rows) for name, rows in targets.items()}
        return fetcher.receive(items, lambda peer, size: heard[peer].append(size))

    cutters = {name: owner(n) for n, name in enumerate(counts)}
    assert with_owners(cutters, use) == sum(rows.nbytes for rows in targets.values())
    for n, (name, rows) in enumerate(targets.items()):
        assert rows.tolist() == [[100.0 * n + at] * 5 for at in range(len(rows))]
        assert heard[name] == [5] * len(rows)


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


def test_a_peer_that_fails_is_named_while_others_still_send():
    release = threading.Event()
    late = threading.Timer(30, release.set)  # who waits for the slow one finds this set
    late.start()

    def slow(run, asked):
        def pieces():
            yield np.zeros((1, 5))
            release.wait()
            yield np.zeros((1, 5))

        return {"dtypes": ["<f8", "<f8"]}, pieces()

    def failing(run, asked):
        raise RuntimeError("its connection ends")

    def use(fetcher):
        items = {"slow": wanted(np.zeros(5), np.zeros(5)), "failing": wanted(np.zeros(5))}
        try:
            with pytest.raises(PeersMissing, match="failing"):
                fetcher.receive(items)
            return release.is_set()
        finally:
            late.cancel()
            release.set()

    assert not with_owners({"slow": slow, "failing": failing}, use)
