"""Many requests in mixed batches on V2, with drafts of every source."""

import numpy as np
from tiny_models import document, ids_of
from wandering import Wanderer, check_sound

REQUESTS, TOKENS = 60, 12


def test_many_requests_in_mixed_batches(served, engines):
    draw = np.random.default_rng(5)
    asked = []
    for at in range(REQUESTS):
        text = ids_of(document(3000 + at, int(draw.integers(1, 3))))
        asked.append(text[: int(draw.integers(12, len(text)))])
    expected = engines(max_num_seqs=32).greedy(asked, TOKENS)
    engine = served("eagle3", max_num_seqs=32)
    wanderer = Wanderer(engine, 12)
    assert engine.greedy(asked, TOKENS) == expected
    check_sound(wanderer.worker)
    assert min(wanderer.taken.values()) > 10, wanderer.taken
