"""The mean of back-to-back repetitions, and its confidence interval."""

import functools
import math

# When there are so many batches, neighbours are joined: 8 to 15 remain, whose Student's t (2.4 to
# 2.1 at 95 %) is close to the normal quantile 2.0
_MANY = 16


@functools.lru_cache
def student_t(degrees: int, confidence: float) -> float:
    """Return the two-sided quantile of Student's t distribution.

    Parameters
    ----------
    degrees : int
        Of freedom, >= 1.
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
    import scipy  # only who measures needs it

    return float(scipy.special.stdtrit(degrees, (1 + confidence) / 2))


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
    a period are close to normal and hardly depend on each other, as the interval supposes. The
    batches grow with the whole: from the sixteenth on, neighbours are joined and the next ones are
    twice as long. A batch that is not full when the timing ends counts for the mean only. O(1) per
    repetition.

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
        self._batches: list[tuple[float, int]] = []  # seconds, repetitions
        self._batch_count = 1  # repetitions that a batch has at least
        self._open = 0.0, 0

    @property
    def mean(self) -> float:
        """Seconds per repetition, of at least one repetition."""
        return self.total / self.count

    def add(self, seconds: float) -> None:
        """Take one more duration in seconds."""
        self.count += 1
        self.total += seconds
        self._open = self._open[0] + seconds, self._open[1] + 1
        if self._open[0] >= self.batch_seconds and self._open[1] >= self._batch_count:
            self._batches.append(self._open)
            self._open = 0.0, 0
            if len(self._batches) == _MANY:
                self._join()
            self._estimate()

    def _join(self) -> None:
        pairs = zip(self._batches[::2], self._batches[1::2], strict=True)
        self._batches = [(a + b, m + n) for (a, m), (b, n) in pairs]
        self.batch_seconds *= 2
        self._batch_count *= 2

    def _estimate(self) -> None:
        many = len(self._batches)
        if many < 2:
            return
        means = [seconds / count for seconds, count in self._batches]
        centre = math.fsum(means) / many
        variance = math.fsum((mean - centre) ** 2 for mean in means) / (many - 1)
        self.half_width = student_t(many - 1, self.confidence) * math.sqrt(variance / many)
