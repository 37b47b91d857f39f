"""On a worker: its rows times the vector, of which all workers get all parts."""

import numpy as np

from fpmdask.runtime.regions import common
from fpmdask.runtime.worker.fetch import FetchFailed, Want
from fpmdask.runtime.worker.steps import step
from power_iteration.spec import ITERATE


def iterate(order):
    step(ITERATE, order, lambda side, space: _iterate(side.worker.address, space.exchange, order))


def _iterate(own, exchange, order):
    exchange.know(order["channels"])
    try:
        rows = _rows(exchange, order, *order["rows"][own])
        vector = np.ones(order["spec"]["columns"])
        others = [peer for peer in order["rows"] if peer != own]
        key, offer = ("vector", order["attempt"]), None
        for turn in range(order["spec"]["iterations"]):
            following = np.empty_like(vector)
            parts = {peer: following[low:high] for peer, (low, high) in order["rows"].items()}
            parts[own][...] = rows @ (vector / np.linalg.norm(vector))
            if offer is not None:
                offer.wait_read()
            offer = exchange.offer(key, parts[own], turn, readers=others)
            exchange.fetch(
                Want(key, ((0, parts[peer].size),), parts[peer], [peer], turn) for peer in others
            ).wait()
            vector = following
        offer.wait_read()
    except FetchFailed as failed:
        return {"missing": failed.peers[0]}
    return {"eigenvalue": float(np.linalg.norm(vector))}


def _rows(exchange, order, low, high):
    columns = order["spec"]["columns"]
    rows = np.empty((high - low, columns))
    wants = []
    for key, first, end, holders in order["chunks"]:
        if (met := common(((first, end),), ((low, high),))) is not None:
            ((begin, stop),) = met
            box = ((begin - first, stop - first), (0, columns))
            out = rows[begin - low : stop - low]
            wants.append(Want(tuple(key), box, out, holders, shape=(end - first, columns)))
    exchange.fetch(wants).wait()
    return rows
