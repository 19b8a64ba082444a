"""The ring in a live engine: what ended is copied, changes no output, and salts keep out of it."""

import pytest
from heard import Heard

POLICY, RING = "fixed:ngram:8:2", {"ring_tokens": 4096}


def run(engine, prompts, salts=None):
    """The outputs, and how many drafted tokens were accepted; its last answers are in the ring."""
    heard = Heard(engine.session)
    outputs = engine.greedy(prompts, salts=salts)
    engine.greedy([[1, 2, 3]], 1, salts=["another"])  # who has ended is told with the next step
    return outputs, sum(int(event.accepted.sum()) for event in heard["verified"])


@pytest.mark.parametrize("salts", [("one", "one", "two"), (None, "one", "one")])
def test_an_answer_with_a_salt_neither_enters_the_ring_nor_is_helped_by_it(
    serve, truth, prompts, salts
):
    engine, _ = serve(None, POLICY, **RING)
    (alone,) = {run(engine, prompts[:3], [salt] * 3)[1] for salt in salts}
    assert run(engine, prompts[:3])[0] == truth()[:3]
    assert run(engine, prompts[:3])[1] > alone + 6
