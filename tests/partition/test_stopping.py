"""Which round is the outcome."""

import numpy as np

from fpmdask.models import ConstantModel
from fpmdask.partition.evidence import Fit
from fpmdask.partition.outcome import Round
from fpmdask.partition.stopping import best_round, worthwhile


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


def test_a_best_round_that_no_longer_counts_is_worth_another():
    """Whatever the models promise: where all rounds were too large, or are beyond the limits."""
    fit, same = Fit((ConstantModel(1.0), ConstantModel(1.0)), 0.0), np.array([5, 5])
    rounds, failed = [measured([5, 5], [5.0, 5.0])], [measured([5, 5], [np.inf, np.inf])]
    free, tight = np.array([np.inf, np.inf]), np.array([np.inf, 4.0])
    assert not worthwhile(same, rounds, free, fit)
    assert worthwhile(same, rounds, tight, fit)
    assert worthwhile(same, failed, free, fit)
    assert worthwhile(same, failed, tight, fit)
