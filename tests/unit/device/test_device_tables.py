"""The tables say on a device what they say on the host."""

from __future__ import annotations

import numpy as np
import pytest

from adaspec.predict.tables import LEVELS, TOLD, Tables, level_keys, look_up, look_up_copy, packed

torch = pytest.importorskip("torch", reason="torch is not installed")

from adaspec.device.tables import DeviceTables  # noqa: E402

VOCABULARY = (0, 1, 2, 77, 151_935, 2**31 - 1)


def random_tables(rng: np.random.Generator, count: int) -> Tables:
    """Tables with the keys of so many random places, some of them left out."""
    salt = int(rng.integers(1, 2**64, dtype=np.uint64))
    keys = np.zeros((count, LEVELS), np.uint64)
    for row in keys:
        level_keys(np.uint64(salt), *rng.choice((-1, *VOCABULARY), 5), row)
    distinct = np.unique(keys[keys != 0])
    distinct = distinct[rng.random(len(distinct)) < 0.7]
    figures = rng.random((3, len(distinct))).astype(np.float32)
    return packed(distinct, *figures, tuple(rng.random(4)), salt)


@pytest.mark.parametrize("places", [0, 1, 40, 3000])
def test_every_key_is_found_or_missed_as_on_the_host(places: int) -> None:
    rng = np.random.default_rng(places)
    tables = random_tables(rng, places)
    device = DeviceTables(tables, torch.device("cpu"))
    tokens = rng.choice((-1, *VOCABULARY), (500, 5))
    told = np.zeros((len(tokens), LEVELS * TOLD), np.float32)
    copied = np.zeros((len(tokens), 3), np.float32)
    keys = np.zeros(LEVELS, np.uint64)
    for row, each in enumerate(tokens):
        look_up(tables, *each, keys, told[row])
        look_up_copy(tables, each[0], each[3], keys, copied[row])
    columns = torch.from_numpy(tokens).unbind(1)
    np.testing.assert_array_equal(device.look_up(*columns).flatten(1).numpy(), told)
    np.testing.assert_array_equal(device.look_up_copy(columns[0], columns[3]).numpy(), copied)


def test_a_key_at_the_end_of_a_long_run_of_full_slots_is_found() -> None:
    # Hashes whose first choices are the same slot: the last of them lies as many slots on.
    keys = (np.arange(1, 60, dtype=np.uint64) << np.uint64(20)) | np.uint64(0x3FF)
    means = np.linspace(0, 1, len(keys)).astype(np.float32)
    device = DeviceTables(packed(keys, means, means, means, (0, 0, 0, 0), 1), torch.device("cpu"))
    found, figures = device._find(torch.from_numpy(keys.view(np.int64)))
    assert found.all()
    np.testing.assert_array_equal(figures[:, 0].numpy(), means)
    found, _ = device._find(torch.from_numpy((keys << np.uint64(8)).view(np.int64) | 1))
    assert not found.any()
