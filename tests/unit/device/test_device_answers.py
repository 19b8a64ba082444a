"""The device's look-up in earlier answers finds what the host's finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaspec.draft.index import NgramIndex

torch = pytest.importorskip("torch", reason="torch is not installed")

from made_answers import random_answers  # noqa: E402

from adaspec.device.answers import best_match, copied  # noqa: E402
from adaspec.device.lookup import append, look_up, read_text  # noqa: E402

CPU = torch.device("cpu")


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_it_finds_the_hosts_matches_in_texts_and_behind_drafts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    alphabet, rows, depths = int(rng.choice([2, 4, 12])), 4, int(rng.integers(0, 4))
    index, answers = random_answers(rng, rows + 2, alphabet, CPU, int(rng.integers(0, 120)))
    np.testing.assert_array_equal(answers.words.numpy(), index.words)
    slots = rng.permutation(rows + 2)[:rows]
    owners = answers.owners.numpy()
    buffer = rng.integers(0, alphabet, (rows + 2, 90)).astype(np.int32)
    lengths = rng.integers(1, 80, rows + 2).astype(np.int32)
    for slot in slots:
        stored = index.stored[: index.words[1]]
        if len(stored) > 40 and rng.random() < 0.7:  # a text that ends as an answer goes on
            begin = int(rng.integers(0, len(stored) - 40))
            said = np.maximum(stored[begin : begin + rng.integers(3, 40)], 0)[-lengths[slot] :]
            buffer[slot, lengths[slot] - len(said) : lengths[slot]] = said
    host = NgramIndex(index)
    opened = [host.open(buffer[slot, : lengths[slot]], int(owners[slot])) for slot in slots]
    drafts = rng.integers(0, alphabet, (rows, depths)).astype(np.int32)
    places = torch.from_numpy(slots)
    text = read_text(torch.from_numpy(buffer), torch.from_numpy(lengths), places, depths)
    for depth in range(depths + 1):
        if depth:
            text = append(text, torch.from_numpy(drafts[:, depth - 1].copy()))
        found = best_match(look_up(text), answers, places, text)
        wanted = host.lookup_behind(opened, drafts, [depth] * rows)
        for name in ("length", "start", "agree", "seen", "available"):
            np.testing.assert_array_equal(
                getattr(found, name).numpy(), getattr(wanted, name), f"{name} behind {depth}"
            )
        said = copied(text, answers, found.start, 8).numpy()
        np.testing.assert_array_equal(found.follower.numpy(), said[:, 0])
        if depth == 0:
            np.testing.assert_array_equal(said, host.survey(opened, 3, 8)[2])
