import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmdask.timing.drops import bridge, line_through, straight
from fpmdask.timing.interval import Sample


def line(width, cliff, slower=8.0, top=4000):
    """Return a line that is constant up to `cliff` rows and slower from a row later on."""
    rows = [8] if cliff is None else [8, cliff, cliff + 1]
    samples = [
        Sample(r, r * width * (slower if cliff is not None and r > cliff else 1) / 1e6)
        for r in (*rows, top)
    ]
    return line_through(samples[::-1], width, 0.05)


@given(st.integers(100, 1000), st.integers(1001, 4000), st.integers(20, 400), st.floats(0.05, 0.95))
def test_drops_at_constant_rows_or_area_are_met_exactly(low, high, rows, part):
    width = low + part * (high - low)
    same = bridge(line(low, rows), line(high, rows))
    assert same.drops(width)[0] == pytest.approx((rows, rows + 1))
    area = high * rows
    found = bridge(line(low, area // low), line(high, rows)).drops(width)[0]
    assert found[0] == pytest.approx(area / width, abs=1)


def test_the_column_of_a_bridge_drops_where_the_bridge_says():
    found = bridge(line(1000, 200), line(2000, 100))
    rows, seconds = found.column(1500, 8, 4000)
    speeds = rows * 1500 / seconds
    before, after = found.drops(1500)[0]
    assert speeds[rows <= before] == pytest.approx(1e6)
    assert speeds[rows >= after] == pytest.approx(1e6 / 8)
    assert (rows[0], rows[-1]) == (8, 4000)
    assert found.seconds(100, 1500) == pytest.approx(0.15)
    steps = np.diff([1000, *found.widths(0.05), 2000])
    assert steps.max() <= 0.08 * 1000


def test_drops_that_do_not_correspond_make_no_bridge():
    assert bridge(line(1000, None), line(2000, 100)) is None
    assert bridge(line(1000, 8), line(2000, 100)) is None  # from the first row on
    assert straight(line(1000, None), line(2000, 100)).along is False
    assert bridge(line(1000, None), line(2000, None)).drops(1500) == []


def test_noise_is_no_drop():
    noisy = [Sample(10, 1.0, 0.2), Sample(11, 1.35, 0.2), Sample(12, 1.3, 0.2)]
    assert line_through(noisy, 5, 0.05).drops() == []
    assert len(line_through([Sample(s.units, s.seconds) for s in noisy], 5, 0.05).drops()) == 1
