"""Whatever fails in a policy or around it, outputs stay, serving goes on and counters say it."""

from unittest.mock import Mock

import pytest
from tiny_models import document, ids_of
from wandering import Wanderer, breaking, random_policy, without_numbers

from adaspec.vllm.events import MAX_IN_A_ROW, MAX_OBSERVER_FAILURES

PLACES = [
    ("decider", "holds_drafter"),
    ("decider", "decide"),
    ("decider", "take_likeliest"),
    ("drafting", "finish"),
]


@pytest.mark.parametrize(("part", "name"), PLACES)
def test_a_fault_now_and_then_costs_only_its_step(serve, prompts, truth, monkeypatch, part, name):
    engine, _ = serve("eagle")
    session = Wanderer(engine).session
    failed = breaking(monkeypatch, getattr(session, part), name, 3)
    assert engine.greedy(prompts[:8], 32) == truth(32)[:8]
    assert engine.greedy(prompts[:2], 8) == truth(8)[:2]
    assert failed
    assert sum(session.breaker.counts.values()) >= len(failed)
    assert not session.breaker.off


def test_what_always_fails_is_switched_off(serve, prompts, truth, monkeypatch):
    engine, _ = serve("eagle")
    session = Wanderer(engine).session
    breaking(monkeypatch, session.drafting, "finish", 1)
    assert engine.greedy(prompts, 48) == truth()
    assert session.breaker.off
    assert sum(session.breaker.counts.values()) == MAX_IN_A_ROW
    engine.judged.clear()
    assert engine.greedy(prompts, 48) == truth()
    assert not engine.judged


def test_a_model_that_says_nan_drafts_nothing_harmful(serve, prompts, truth):
    engine, session = serve("eagle", without_numbers(random_policy(1, True)))
    assert engine.greedy(prompts, 48) == truth()
    assert not session.breaker.off


def test_an_index_and_an_observer_that_fail_cost_no_output(serve, prompts, truth, monkeypatch):
    engine, session = serve("eagle")
    observer = Mock()
    observer.proposed.side_effect = OSError("injected")
    session.observers.add(observer)
    texts = engine.runner.propose_draft_token_ids.__self__._texts
    breaking(monkeypatch, texts, "write", 4)
    assert engine.greedy(prompts, 48) == truth()
    assert session.breaker.counts.keys() == {"batch"}
    assert observer.proposed.call_count == MAX_OBSERVER_FAILURES


@pytest.mark.thorough
def test_a_request_of_a_hundred_thousand_tokens(engines):
    prompt = (ids_of(document(1, 400)) * 400)[:100_000]
    arguments = {
        "max_model_len": 100_100,
        "hf_overrides": {"max_position_embeddings": 100_100},
        "max_num_batched_tokens": 4096,
        "num_gpu_blocks_override": 2000,
    }
    expected = engines(None, **arguments).greedy([prompt, prompt[:50]], 24)
    engine = engines({"method": "adaspec", "num_speculative_tokens": 12}, **arguments)
    assert engine.greedy([prompt, prompt[:50]], 24) == expected
    assert engine.judged
    assert not engine.session.breaker.counts
