from unittest.mock import Mock

import pytest
from tiny_models import document, ids_of
from wandering import breaking

from adaspec.vllm.events import MAX_OBSERVER_FAILURES


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
