"""A search of the token tables goes on for as long as any key needs."""

from __future__ import annotations

import numpy as np
from interpreter import torch

from adaspec.kernels.tables import TableBuffers
from adaspec.predict.tables import packed


def test_a_key_at_the_end_of_a_long_run_of_full_slots_is_reached() -> None:
    # Hashes whose first choices are the same slot: the last of them lies as many slots on.
    keys = (np.arange(1, 60, dtype=np.uint64) << np.uint64(20)) | np.uint64(0x3FF)
    means = np.linspace(0, 1, len(keys)).astype(np.float32)
    tables = packed(keys, means, means, means, (0, 0, 0, 0), 1)
    assert TableBuffers.of(tables, torch.device("cpu")).probes.value == 64
