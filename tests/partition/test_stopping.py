"""Which round is the outcome."""

import numpy as np

from fpmdask.partition.outcome import Round
from fpmdask.partition.stopping import best_round


def measured(units, seconds):
    return Round(np.array(units), np.array(seconds), 0.0)


def test_the_best_round_is_the_fastest_that_the_limits_allow():
    slow, fast = measured([5, 5], [3.0, 3.0]), measured([4, 6], [2.0, 2.0])
    failed = measured([2, 8], [1.0, np.inf])
    assert best_round([slow, fast, failed], np.array([10.0, 10.0])) is fast
    assert best_round([slow, fast, failed], np.array([10.0, 6.0])) is fast  # a full worker
    assert best_round([slow, fast, failed], np.array([10.0, 5.0])) is slow
    assert best_round([slow, fast, failed], np.array([10.0, 4.0])) is fast  # none is allowed
    assert best_round([failed], np.array([10.0, 10.0])) is failed
