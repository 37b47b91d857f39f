"""Searches for the distribution with the smallest predicted time.

All have the signature ``search(predict, start, *, rng, budget=10_000) -> SearchResult``. `predict`
maps distributions, int64 of shape [K, p], to seconds, float64 of shape [K], ``inf`` where
infeasible; `fpmdask.mheta.evaluator` returns one. `start` holds distributions of the same number of
rows, such as those of `fpmdask.mheta.anchors`. Every search predicts them first, predicts in
batches, each distribution once, and returns nothing worse than the best start. `gbs` is the one
to use; `exhaustive` finds the optimum where there are few distributions; the others are for
comparison.

Pure: NumPy only; the generator `rng` is the only randomness, so that the same input and seed give
the same result.
"""

from fpmdask.mheta.search.annealing import annealing as annealing
from fpmdask.mheta.search.exhaustive import exhaustive as exhaustive
from fpmdask.mheta.search.gbs import gbs as gbs
from fpmdask.mheta.search.genetic import genetic as genetic
from fpmdask.mheta.search.random_search import random_search as random_search
from fpmdask.mheta.search.result import SearchResult as SearchResult
