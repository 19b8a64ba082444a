"""What operators and requests say while a V1 engine serves: outputs stay, drafts follow."""

from itertools import pairwise

import pytest

KEYS = ("ngram", "neural", "splice")


@pytest.fixture(scope="module")
def mode_path(tmp_path_factory):
    return tmp_path_factory.mktemp("control") / "mode"


@pytest.fixture
def controlled(engines, mode_path, monkeypatch, truth):
    """An engine with a mode file that is looked at in every step, and its counters."""
    from adaspec.vllm import mode_file
    from adaspec.vllm.metrics import Counters, MetricsObserver

    truth()  # an engine of its own, of which there is one at a time
    monkeypatch.setattr(mode_file, "PERIOD_S", 0.0)
    mode_path.write_text("serve")
    config = {"method": "adaspec", "model": "eagle", "mode": "off", "mode_file": str(mode_path)}
    engine = engines(config)
    session = engine.put("hybrid-splice:4:20:3:2:5")
    counters = Counters(None, {})
    session.observers.add(MetricsObserver(counters))
    return engine, session, counters


def drafted(counters):
    return sum(counters[f"drafted_tokens/{key}"] for key in KEYS)


def after_each_step(engine, act):
    """Call `act` with the number of each step that is scheduled; returns what ends that."""
    original, count = engine.scheduler.schedule, [0]

    def schedule(*args):
        count[0] += 1
        act(count[0])
        return original(*args)

    engine.scheduler.schedule = schedule
    return lambda: setattr(engine.scheduler, "schedule", original)


def test_the_mode_changes_within_a_step_and_outputs_do_not(controlled, truth, prompts, mode_path):
    expected = truth()
    engine, session, counters = controlled
    words = ("serve", "off", "serve", "shadow", "sevre", "serve", "off")
    seen = []
    """After each step: the word that the file said in it, its mode, tokens verified until then."""

    def word(step):
        return words[step // 3 % len(words)]

    def act(step):
        if step > 1:
            seen.append((word(step - 1), session.mode, drafted(counters)))
        mode_path.write_text(word(step))

    end = after_each_step(engine, act)
    try:
        assert engine.greedy(prompts) == expected
    finally:
        end()
    assert {mode for _, mode, _ in seen} == {"serve", "shadow", "off"}
    for (_, before, verified), (said, mode, verified_now) in pairwise(seen):
        assert mode == (before if said == "sevre" else said)
        if before != "serve":
            assert verified_now == verified
    assert drafted(counters) > 0
    assert counters["faults/mode_file"] >= 1
    assert not session.breaker.counts


def test_requests_say_what_is_drafted_for_them_alone(controlled, truth, prompts):
    from vllm import SamplingParams

    expected = truth()
    engine, session, counters = controlled
    asked = [
        {},
        {"adaspec": "off"},
        {"adaspec_cap": 2},
        {"adaspec_source": "ngram"},
        {"adaspec_source": "neural"},
    ]
    params = [
        SamplingParams(
            temperature=0, max_tokens=48, ignore_eos=True, extra_args=asked[at % len(asked)]
        )
        for at in range(len(prompts))
    ]
    by_kind = {at: [] for at in range(len(asked))}

    class Listener:
        def proposed(self, event):
            for name, neural, ngram in zip(
                event.requests, event.cut.neural_len, event.cut.ngram_len, strict=True
            ):
                kind = first_of(int(name.split("-")[0])) % len(asked)
                by_kind[kind].append((int(neural), int(ngram)))

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(name)
            return lambda *values: None

    numbers = []

    def first_of(number):
        numbers.append(number)
        return number - min(numbers)

    session.observers.add(Listener())
    assert [one[0] for one in engine.outputs(prompts, params)] == expected
    assert any(neural and ngram for neural, ngram in by_kind[0])
    assert not any(neural or ngram for neural, ngram in by_kind[1])
    assert max(neural + ngram for neural, ngram in by_kind[2]) == 2
    assert not any(neural for neural, _ in by_kind[3])
    assert any(ngram for _, ngram in by_kind[3])
    assert not any(ngram for _, ngram in by_kind[4])
    assert any(neural for neural, _ in by_kind[4])
    assert counters["decisions/none/limited"] == len(by_kind[1])
    assert not session.breaker.counts


def test_a_wrong_request_is_refused_and_others_are_served(controlled, truth, prompts):
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError

    expected = truth()
    engine, session, _ = controlled
    wrong = SamplingParams(max_tokens=4, extra_args={"adaspec_cap": "many"})
    with pytest.raises(VLLMValidationError, match="adaspec_cap is 'many': give a whole number"):
        engine.outputs(prompts[:1], wrong)
    assert engine.greedy(prompts) == expected
    assert not session.breaker.counts
