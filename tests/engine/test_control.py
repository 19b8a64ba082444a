"""What operators and requests say while a V1 engine serves: outputs stay, drafts follow."""

from itertools import pairwise

import pytest

from adaspec.vllm.events import Observer
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


class Lengths(Observer):
    """Keeps the lengths of each request's drafts, by the engine's number of the request."""

    def __init__(self):
        self.of = {}

    def proposed(self, event):
        rows = zip(event.requests, event.cut.neural_len, event.cut.ngram_len, strict=True)
        for name, neural, ngram in rows:
            self.of.setdefault(int(name.split("-")[0]), []).append((int(neural), int(ngram)))


def test_requests_say_what_is_drafted_for_them_alone(controlled, truth, prompts):
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError

    engine, session, counters = controlled
    lengths = Lengths()
    session.observers.add(lengths)
    asked = [
        {},
        {"adaspec": "off"},
        {"adaspec_cap": 2},
        {"adaspec_source": "ngram"},
        {"adaspec_source": "neural"},
    ]
    wrong = SamplingParams(max_tokens=4, extra_args={"adaspec_cap": "many"})
    with pytest.raises(VLLMValidationError, match="adaspec_cap is 'many': give a whole number"):
        engine.outputs(prompts[:1], wrong)
    params = [
        SamplingParams(
            temperature=0, max_tokens=48, ignore_eos=True, extra_args=asked[at % len(asked)]
        )
        for at in range(len(prompts))
    ]
    assert [one[0] for one in engine.outputs(prompts, params)] == truth()
    in_order = [lengths.of[name] for name in sorted(lengths.of)]
    by_kind = [[each for one in in_order[at::5] for each in one] for at in range(len(asked))]
    assert any(neural and ngram for neural, ngram in by_kind[0])
    assert not any(neural or ngram for neural, ngram in by_kind[1])
    assert max(neural + ngram for neural, ngram in by_kind[2]) == 2
    assert not any(neural for neural, _ in by_kind[3])
    assert any(ngram for _, ngram in by_kind[3])
    assert not any(ngram for _, ngram in by_kind[4])
    assert any(neural for neural, _ in by_kind[4])
    assert counters["decisions/none/limited"] == len(by_kind[1])
    assert not session.breaker.counts
