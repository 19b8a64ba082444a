"""Token tables and survival curves: looked up as stored, stored as made, refused when damaged."""

from __future__ import annotations

import numpy as np
import pytest

from adaspec.errors import PolicyError
from adaspec.predict.survival import Curves, curves_from
from adaspec.predict.tables import MEAN, find, from_arrays, make_tables, to_arrays


def random_tables(seed: int, size: int):
    rng = np.random.default_rng(seed)
    keys = np.unique(rng.integers(1, 1 << 63, size).astype(np.uint64) | np.uint64(1))
    rng.shuffle(keys)
    means, counts, depths = rng.random((3, len(keys))).astype(np.float32)
    tables = make_tables(keys, means, counts, depths, np.array((0.3, 0.2, 1.0, 0.9)), 7)
    return tables, dict(zip(keys.tolist(), means, strict=True))


@pytest.mark.parametrize("size", [0, 1, 2, 8, 9, 1000])
def test_a_table_finds_what_a_dict_finds(size: int) -> None:
    tables, held = random_tables(size, size)
    asked = np.array([*held, *range(1, 4001, 2)], np.uint64)
    place, found = find(tables, asked)
    assert found.tolist() == [key in held for key in asked.tolist()]
    means = [held[key] for key in asked[found].tolist()]
    assert tables.entries[place[found], MEAN].tolist() == means


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


def test_damaged_curves_are_refused() -> None:
    edges, shapes = np.array([0.25, 0.5]), np.linspace(1, 0, 27).reshape(9, 3).T.copy()
    shapes[:, :2] = 1
    curves = Curves(edges, np.minimum.accumulate(shapes, axis=1))
    edges, shapes = curves
    np.testing.assert_array_equal(curves_from("n", curves._asdict()).shapes, shapes)
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
            curves_from("n", damaged._asdict())
