"""Static rules on V2: the same choice, by curves that the rule writes."""

import numpy as np
import pytest
from heard import Heard
from wandering import check_sound

from adaspec.policy.spec import parse_policy

TOKENS = 32


@pytest.mark.parametrize(
    ("head", "spec", "neural", "copied"),
    [
        ("eagle3", "fixed:neural:3", {3}, {0}),
        ("dflash", "hybrid-splice:3:8:2:1:4", {0, 2}, {0, 4, 8}),
        ("eagle3", "hybrid-splice:3:8:2:1:4", {0, 2}, {0, 4, 8}),
        (None, "fixed:ngram:5:2", {0}, {0, 5}),
    ],
)
def test_a_rule_drafts_what_it_says(served, prompts, truth, head, spec, neural, copied):
    engine = served(head)
    session = engine.put(parse_policy(spec))
    verified = Heard(session)["verified"]
    assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    check_sound(session)
    # The engine cuts a request's last draft.
    drafted = [
        (by_head, whole - by_head)
        for event in verified
        for by_head, whole in zip(event.neural_drafted, event.drafted, strict=True)
    ]
    assert max((by_head for by_head, _ in drafted), default=0) == max(neural)
    assert max((ngram for _, ngram in drafted), default=0) == max(copied)
    usual = [(by_head in neural, ngram in copied) for by_head, ngram in drafted]
    assert np.mean(usual) > 0.8, drafted
