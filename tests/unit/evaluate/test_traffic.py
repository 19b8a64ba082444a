from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_recordings import random_requests, recorded

from adaspec.errors import EvaluationError
from adaspec.evaluate.traffic import draw_orders, parse_arrivals
from adaspec.replay.recording import build_recording


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


def recording_with(sizes):
    """A recording of so many requests per workload, in mixed order."""
    requests = random_requests(1, sum(sizes.values()), tokens=False)
    names = [name for name, size in sizes.items() for _ in range(size)]
    names = [names[at] for at in np.random.default_rng(0).permutation(len(names))]
    return build_recording(
        [recorded(one, str(at), name) for at, (one, name) in enumerate(zip(requests, names))],  # noqa: B905
        5,
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 140), st.integers(0, 2**31))
def test_an_order_is_whole_passes_over_each_workload_cut_at_the_count(
    first, second, concurrency, seed
):
    recording = recording_with({"a": first, "b": second})
    count = max(160, 3 * concurrency)
    (mix,) = draw_orders(recording, None, concurrency, seed, 1)
    assert len(mix) == 2 * count
    for name, size in (("a", first), ("b", second)):
        members = set(recording.members(name).tolist())
        assert len(members) == size
        drawn = Counter(r for r in mix.tolist() if r in members)
        assert sum(drawn.values()) == count
        assert set(drawn.values()) <= {count // size, -(-count // size)}
        (alone,) = draw_orders(recording, name, concurrency, seed, 1)
        assert len(alone) == count
        assert set(Counter(alone.tolist()).values()) <= {count // size, -(-count // size)}
        assert set(alone.tolist()) <= members


def test_every_order_draws_afresh_from_its_own_seed():
    recording = recording_with({"a": 30, "b": 50})
    three = draw_orders(recording, None, 8, 5, 3)
    again = draw_orders(recording, None, 8, 5, 3)
    for order, same in zip(three, again, strict=True):
        np.testing.assert_array_equal(order, same)
    np.testing.assert_array_equal(draw_orders(recording, None, 8, 5, 1)[0], three[0])
    drawn = {
        tuple(order.tolist())
        for seed in (5, 6)
        for workload in (None, "a", "b")
        for concurrency in (1, 8)
        for order in draw_orders(recording, workload, concurrency, seed, 3)
    }
    assert len(drawn) == 2 * 3 * 2 * 3
    mixed = np.isin(three[0], recording.members("a"))
    assert 60 < mixed[:160].sum() < 100, "shuffled together, not one after another"
