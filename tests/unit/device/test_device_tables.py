"""The tables say on a device what they say on the host."""

from __future__ import annotations

import numpy as np
import pytest

from adaspec.predict.tables import packed

torch = pytest.importorskip("torch", reason="torch is not installed")

from adaspec.device.tables import DeviceTables  # noqa: E402


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
