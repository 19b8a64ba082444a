"""On V2, too, greedy output equals that without speculation, token for token."""

from collections import Counter

import numpy as np
import pytest
from test_either_runner import check_arms
from tiny_models import document, ids_of
from wandering import NEURAL_CAP, Wanderer, check_sound

TOKENS = 32
CHUNKED = {"max_num_batched_tokens": 96, "max_num_seqs": 5, "block_size": 32}
THOROUGH = pytest.mark.thorough
HEADS_IN_TURN = ("dflash2", "dspark")
"""Heads of one pass whose tokens depend on those before."""


@pytest.mark.parametrize(
    "head",
    [
        *("eagle3", "dflash", "dspark", None),
        *(pytest.param(each, marks=THOROUGH) for each in ("eagle", "draft", "dflash2")),
    ],
)
def test_whatever_is_decided_leaves_the_output_as_it_was(served, prompts, truth, head):
    engine, taken = served(head), Counter[str]()
    for seed in (1, 2):
        wanderer = Wanderer(engine, seed, evidence=head is not None)
        assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
        check_sound(wanderer.session)
        taken.update(wanderer.taken)
    kinds = ("ngram",) if head is None else ("ngram", "neural", "splice")
    assert all(taken[kind] > 0 for kind in kinds), taken
    said = engine.runner.speculator.adaspec_reading.confidences[:NEURAL_CAP, 0]
    assert head is None or said.isfinite().all()


@THOROUGH
def test_a_model_that_drafts_for_itself_says_what_it_says_without(served, engines, prompts):
    expected = engines(target="mtp").greedy(prompts, TOKENS)
    engine = served("mtp", target="mtp")
    assert engine.runner.speculative_config.method == "mtp"
    wanderer = Wanderer(engine)
    assert engine.greedy(prompts, TOKENS) == expected
    check_sound(wanderer.session)
    assert min(wanderer.taken.values()) > 0, wanderer.taken


def test_arms_with_a_head_of_one_pass(serve, runner, prompts, truth, monkeypatch):
    check_arms(serve, "dflash", runner, prompts, truth, "dflash:3", monkeypatch)


def test_requests_that_come_and_go_in_mixed_batches(served, engines):
    draw, asked = np.random.default_rng(5), []
    for at in range(24):
        text = ids_of(document(3000 + at, int(draw.integers(1, 3))))
        asked.append(text[: int(draw.integers(12, len(text)))])
    expected = engines().greedy(asked, 12)
    engine = served("eagle3")
    wanderer = Wanderer(engine, 12)
    assert engine.greedy(asked, 12) == expected
    check_sound(wanderer.session)
    assert min(wanderer.taken.values()) > 3, wanderer.taken


@pytest.mark.parametrize(
    "head", ["eagle3", "dflash", *(pytest.param(each, marks=THOROUGH) for each in HEADS_IN_TURN)]
)
def test_it_is_left_by_the_kernels_that_accelerators_run(served, prompts, truth, monkeypatch, head):
    engine = served(head)
    monkeypatch.setattr("adaspec.vllm.session.drafting.KERNELS_ON_CPU", True)
    wanderer = Wanderer(engine)
    assert type(wanderer.session.drafting.predictor).__name__ == "FusedPredictor"
    assert engine.greedy(prompts[:3], 10) == truth(10)[:3]
    check_sound(wanderer.session)
    assert sum(wanderer.taken.values()) > 0


def test_prompts_read_in_pieces_and_prefix_hits(served, engines, prompts, truth):
    """While a long prompt is read in pieces and nothing else runs, no row is drafted for."""
    alone = [ids_of(document(70 + at, 14))[:250] for at in range(2)]
    expected = [one for each in alone for one in engines().greedy([each], 12)]
    engine = served("eagle3", enable_prefix_caching=True, **CHUNKED)
    wanderer = Wanderer(engine)
    for _ in range(2):
        assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    assert [one for each in alone for one in engine.greedy([each], 12)] == expected
    check_sound(wanderer.session)
