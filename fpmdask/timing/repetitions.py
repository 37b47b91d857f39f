"""The mean of back-to-back repetitions, and its confidence interval."""

import functools
import math


@functools.lru_cache(maxsize=4096)
def student_t(degrees: int, confidence: float) -> float:
    """Return the two-sided quantile of Student's t distribution.

    Parameters
    ----------
    degrees : int
        Of freedom, >= 1; above 200 the quantile of 200 is returned, which is at most 1 % larger.
    confidence : float
        Within (0, 1).

    Returns
    -------
    float

    Examples
    --------
    >>> round(student_t(4, 0.95), 3)
    2.776
    """
    # Imported on the first call: importing this package stays cheap
    from scipy.special import stdtrit

    return float(stdtrit(min(degrees, 200), (1 + confidence) / 2))


class Repetitions:
    """Durations of one computation, run back to back.

    Parameters
    ----------
    confidence : float
        Of the interval, within (0, 1).
    batch_seconds : float
        Repetitions are put together until they last that long, and the interval is that of the
        batches' means.

    Notes
    -----
    The mean is the whole time over the number of repetitions. Under a CPU quota one repetition is
    either free or stopped until the next period: the single durations have two values, follow each
    other in a pattern, and two free ones in a row would look precise. Means of batches that cover
    a period are close to normal and hardly depend on each other, as the interval supposes. A batch
    that is not full when the timing ends counts for the mean only. O(1) per repetition.

    Examples
    --------
    >>> repetitions = Repetitions(confidence=0.95)
    >>> for seconds in (1.0, 1.1, 0.9):
    ...     repetitions.add(seconds)
    >>> repetitions.count, round(repetitions.mean, 6), round(repetitions.half_width, 3)
    (3, 1.0, 0.248)
    """

    def __init__(self, confidence: float, batch_seconds: float = 0.0) -> None:
        self.confidence = confidence
        self.batch_seconds = batch_seconds
        self.count = 0
        self.total = 0.0
        self.half_width = math.inf
        self._batch_count = 0
        self._batch_total = 0.0
        # Welford's running mean and sum of squares, over the batches
        self._batches = 0
        self._mean = 0.0
        self._squares = 0.0

    @property
    def mean(self) -> float:
        """Seconds per repetition, of at least one repetition."""
        return self.total / self.count

    def add(self, seconds: float) -> None:
        """Take one more duration in seconds."""
        self.count += 1
        self.total += seconds
        self._batch_count += 1
        self._batch_total += seconds
        if self._batch_total >= self.batch_seconds:
            self._close_batch()

    def _close_batch(self) -> None:
        value = self._batch_total / self._batch_count
        self._batch_count, self._batch_total = 0, 0.0
        self._batches += 1
        step = value - self._mean
        self._mean += step / self._batches
        self._squares += step * (value - self._mean)
        if self._batches > 1:
            variance = self._squares / (self._batches - 1)
            quantile = student_t(self._batches - 1, self.confidence)
            self.half_width = quantile * math.sqrt(variance / self._batches)
