"""What operators and requests say while a V1 engine serves: outputs stay, drafts follow."""

from itertools import pairwise

import pytest

from adaspec.vllm.metrics import Counters, MetricsObserver


@pytest.fixture
def controlled(serve):
    """An engine, its session and its counters."""
    engine, session = serve("eagle")
    counters = Counters(None, {})
    session.observers.add(MetricsObserver(counters))
    return engine, session, counters


def drafted(counters):
    return sum(counters[f"drafted_tokens/{key}"] for key in ("ngram", "neural", "splice"))


def test_the_mode_changes_within_a_step_and_outputs_do_not(
    controlled, truth, prompts, mode_path, monkeypatch
):
    engine, session, counters = controlled
    words = ("serve", "off", "serve", "shadow", "sevre", "serve", "off")
    steps, seen = [0], []
    """After each step: the word that the file said in it, its mode, tokens verified until then."""
    schedule = engine.scheduler.schedule

    def word(step):
        return words[step // 3 % len(words)]

    def write_and_schedule(*args):
        if steps[0]:
            seen.append((word(steps[0]), session.mode, drafted(counters)))
        steps[0] += 1
        mode_path.write_text(word(steps[0]))
        return schedule(*args)

    monkeypatch.setattr(engine.scheduler, "schedule", write_and_schedule)
    assert engine.greedy(prompts) == truth()
    assert {mode for _, mode, _ in seen} == {"serve", "shadow", "off"}
    for (_, before, verified), (said, mode, verified_now) in pairwise(seen):
        assert mode == (before if said == "sevre" else said)
        if before != "serve":
            assert verified_now == verified
    assert drafted(counters) > 0
    assert counters["faults/mode_file"] >= 1
    assert not session.breaker.counts
