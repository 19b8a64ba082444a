"""Token tables and survival curves: looked up as stored, stored as made, refused when damaged."""

from __future__ import annotations

import numpy as np
import pytest

from adaspec.errors import PolicyError
from adaspec.predict.survival import Curves, curve_arrays, curves_from, fill_survival, fit_curves
from adaspec.predict.tables import find, from_arrays, packed, to_arrays


def random_tables(seed: int, size: int):
    rng = np.random.default_rng(seed)
    keys = np.unique(rng.integers(1, 1 << 63, size).astype(np.uint64) | np.uint64(1))
    rng.shuffle(keys)
    means, counts, depths = rng.random((3, len(keys))).astype(np.float32)
    tables = packed(keys, means, counts, depths, (0.3, 0.2, 1.0, 0.9), 7)
    return tables, dict(zip(keys.tolist(), means, strict=True))


@pytest.mark.parametrize("size", [0, 1, 2, 8, 9, 1000])
def test_a_table_finds_what_a_dict_finds(size: int) -> None:
    tables, held = random_tables(size, size)
    for key, mean in held.items():
        assert tables.means[find(tables, np.uint64(key))] == mean
    for key in range(1, 4001, 2):
        assert key in held or find(tables, np.uint64(key)) == -1


DAMAGE = (
    ("keys", lambda a: a[::-1].copy()),
    ("keys", lambda a: np.append(a[:-1], a[-2])),
    ("keys", lambda a: np.append(np.uint64(0), a[1:])),
    ("keys", lambda a: a.astype(np.int64)),
    ("keys", lambda a: a[1:]),
    ("means", lambda a: a * np.float32(np.nan)),
    ("means", lambda a: a + np.float32(1)),
    ("counts", lambda a: -a),
    ("depths", lambda a: a[1:]),
    ("base", lambda a: a[:1]),
    ("base", lambda a: a + np.array([0.8, 0, 0, 0])),
    ("base", lambda a: a + np.inf),
    ("salt", lambda a: a[:, None]),
)


def test_tables_come_back_as_they_went_and_damaged_ones_are_refused() -> None:
    for size in (0, 1, 300):
        arrays = to_arrays(random_tables(1, size)[0])
        back = to_arrays(from_arrays(arrays))
        for name, array in arrays.items():
            np.testing.assert_array_equal(back[name], array)
    damaged = [arrays | {name: damage(arrays[name])} for name, damage in DAMAGE]
    for each in (*damaged, arrays | {"more": arrays["keys"]}, {"keys": arrays["keys"]}):
        with pytest.raises(PolicyError):
            from_arrays(each)


def random_curves(seed: int) -> tuple[Curves, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    scores = rng.choice([rng.random(400), rng.integers(0, 4, 400) / 4])
    accepted = 1.0 + rng.poisson(1 + 4 * scores)
    weights = rng.random(400)
    return fit_curves(scores, accepted, weights, 8, 10), scores, accepted, weights


@pytest.mark.parametrize("seed", range(10))
def test_a_curve_falls_from_1_and_is_that_of_its_scores_own_bin(seed: int) -> None:
    curves, scores, accepted, weights = random_curves(seed)
    pooled = [np.average(accepted >= j, weights=weights) for j in range(9)]
    out = np.full(12, 9.0)
    for score in [-1.0, *scores[:60], 2.0]:
        fill_survival(0.7, float(score), curves, out)
        low = max((edge for edge in curves.edges if edge <= score), default=-np.inf)
        high = min((edge for edge in curves.edges if edge > score), default=np.inf)
        inside = (scores >= low) & (scores < high)
        expected = np.array(pooled)
        if inside.any():
            own = [np.average(accepted[inside] >= j, weights=weights[inside]) for j in range(9)]
            mass = weights[inside].sum()
            expected = (mass * np.array(own) + 30 * expected) / (mass + 30)
        np.testing.assert_allclose(out[1:9], 0.7 * expected[1:], rtol=1e-9)
        assert out[0] == 1
        assert (np.diff(out) <= 1e-12).all()
        assert (out[9:] == 0).all()


def test_damaged_curves_are_refused() -> None:
    curves = random_curves(3)[0]
    edges, shapes = curves
    np.testing.assert_array_equal(curves_from("n", curve_arrays("n", curves)).shapes, shapes)
    for damaged in (
        Curves(edges[::-1].copy(), shapes),
        Curves(np.append(edges[:-1], np.nan), shapes),
        Curves(edges, shapes[1:]),
        Curves(edges, shapes[:, ::-1].copy()),
        Curves(edges, shapes * 1.5),
        Curves(edges, shapes.astype(np.float32)),
        Curves(edges, -shapes),
        Curves(edges, shapes[:, :1]),
    ):
        with pytest.raises(PolicyError):
            curves_from("n", curve_arrays("n", damaged))
