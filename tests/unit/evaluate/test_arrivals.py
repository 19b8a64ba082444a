"""When requests come in an open loop."""

import numpy as np
import pytest

from adaspec.errors import EvaluationError
from adaspec.evaluate.traffic import parse_arrivals


def drawn(spec, count=20_000, scale=1.0):
    return parse_arrivals(spec, scale).draw(count, np.random.default_rng(0))


def test_requests_come_at_the_rate_and_in_bursts_at_two():
    seconds = drawn("poisson:8")
    assert (np.diff(seconds) >= 0).all()
    assert len(seconds) / seconds[-1] == pytest.approx(8, rel=0.03)
    assert np.diff(seconds).std() == pytest.approx(1 / 8, rel=0.05)
    np.testing.assert_allclose(drawn("poisson:8", scale=4.0), seconds / 4)
    seconds = drawn("bursts:2:40:10")
    calm = seconds % 20 < 10
    cycles = seconds[-1] / 20
    assert calm.sum() / (10 * cycles) == pytest.approx(2, rel=0.1)
    assert (~calm).sum() / (10 * cycles) == pytest.approx(40, rel=0.03)


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "holds no times"), ("1\n3\n2\n", "line 3"), ("1\nx\n", "line 2"), ("nan\n", "line 1")],
)
def test_a_file_that_is_no_list_of_times_is_refused(tmp_path, text, why):
    path = tmp_path / "times.txt"
    path.write_text(text)
    with pytest.raises(EvaluationError, match=why):
        parse_arrivals(str(path))


def test_a_file_counts_from_its_first_time_and_scales(tmp_path):
    path = tmp_path / "times.txt"
    path.write_text("100.5\n101.5\n101.5\n105.5\n")
    assert drawn(str(path), scale=2.0).tolist() == [0, 0.5, 0.5, 2.5]
    assert drawn(str(path), count=2).tolist() == [0, 1]
