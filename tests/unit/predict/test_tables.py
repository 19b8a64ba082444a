"""Token tables are looked up as they were made."""

import numpy as np
import pytest

from adaspec.predict.tables import MEAN, find, make_tables


def random_tables(seed, size):
    rng = np.random.default_rng(seed)
    keys = np.unique(rng.integers(1, 1 << 63, size).astype(np.uint64) | np.uint64(1))
    rng.shuffle(keys)
    means, counts, depths = rng.random((3, len(keys))).astype(np.float32)
    tables = make_tables(keys, means, counts, depths, np.array((0.3, 0.2, 1.0, 0.9)), 7)
    return tables, dict(zip(keys.tolist(), means, strict=True))


@pytest.mark.parametrize("size", [0, 1, 2, 8, 9, 1000])
def test_a_table_finds_what_a_dict_finds(size):
    tables, held = random_tables(size, size)
    asked = np.array([*held, *range(1, 4001, 2)], np.uint64)
    place, found = find(tables, asked)
    assert found.tolist() == [key in held for key in asked.tolist()]
    means = [held[key] for key in asked[found].tolist()]
    assert tables.entries[place[found], MEAN].tolist() == means
