"""Pieces are cut on the event loop while threads of the run offer more."""

import numpy as np
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.coordinator.space import relayed_key
from tests.eventually import side_of


class Growing(dict):
    """A dict that a thread adds to whenever somebody goes through it."""

    def items(self):
        for item in super().items():
            self[len(self)] = None
            yield item


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_offers_may_come_while_pieces_are_cut(c, s, worker):
    await fpmdask.Balancer(c)
    side = await side_of(worker)
    await side.prepare("run")
    values = np.arange(6.0).reshape(2, 3)
    side.spaces["run"].offered = Growing({("fpmdask-help", 0): values, "gone": None})
    wanted = [(("fpmdask-help", 0), (0, 2, 1, 3), (2, 3))]
    refusal, pieces = side._cut("run", wanted)
    assert not refusal
    np.testing.assert_array_equal(pieces[0], values[:, 1:])
    assert side._cut("run", [("gone", (0, 1, 0, 1), (1, 1))]) == ({"missing": ["gone"]}, [])
    side.forget("run")


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_what_of_a_relayed_chunk_has_not_arrived_is_missing(c, s, worker):
    """Its memory is there with the first slice; Dask's messages do not wait for the others."""
    await fpmdask.Balancer(c)
    side = await side_of(worker)
    await side.prepare("run")
    key = relayed_key(("a", 0, 0))
    values = np.arange(8.0).reshape(2, 4)
    first, last = (key, (0, 2, 0, 2), (2, 4)), (key, (0, 2, 2, 4), (2, 4))
    side.spaces["run"].arrived(key, values, (0, 2, 0, 2))
    (piece,) = (await side.pieces("run", [first]))["pieces"]
    np.testing.assert_array_equal(piece.data, values[:, :2])
    for wanted in ([last], [first, last], [last, first]):
        assert await side.pieces("run", wanted) == {"missing": [key] * len(wanted)}
    side.spaces["run"].arrived(key, values, (0, 2, 2, 4))
    assert len((await side.pieces("run", [first, last]))["pieces"]) == 2
    side.forget("run")


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_nobody_is_asked_for_a_run_that_is_over(c, s, worker, other):
    """Who that is may be gone, and a new connection is tried for half a minute."""
    await fpmdask.Balancer(c)
    side = await side_of(worker)
    await side.prepare("run")
    wanted = [(("x", 0), (0, 1, 0, 1), (1, 1))]
    assert await side.ask(other.address, 5.0, "run", wanted) == {"missing": (("x", 0),)}
    side.forget("run")
    assert await side.ask(other.address, 5.0, "run", wanted) is None
