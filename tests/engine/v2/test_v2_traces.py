"""What is counted and written down on V2 is what the engine did."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from heard import Heard
from wandering import CAP, Wanderer, breaking, check_sound, random_policy

from adaspec.trace.reader import TraceReader
from adaspec.vllm.metrics import Counters
from adaspec.vllm.tracing import recorder_of

TOKENS = 32


@pytest.fixture
def recorded(tmp_path):
    """Records what a session does from here on; returns what ends it and finds a kind of trace."""

    def record(engine, session):
        counters = Counters(None, {})
        options = replace(session.serving.options, trace_dir=str(tmp_path))
        recorder = recorder_of(replace(session.serving, options=options), counters)
        session.observers.add(recorder)

        def ended(kind):
            engine.greedy([[5, 6, 7]], 4)  # whoever left is noticed in the next step
            recorder.close()
            (folder,) = tmp_path.glob(f"{kind}-*")
            return TraceReader(folder)

        return ended

    return record


def test_what_is_learned_and_logged_is_what_was_verified(served, prompts, truth, recorded):
    engine = served("eagle3")
    session = Wanderer(engine).session
    heard = Heard(session)
    ended = recorded(engine, session)
    assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    judged = [step for one in engine.judged.values() for step in one]
    # vLLM counts what was scheduled, and cuts the last step of a request to its length.
    accepted = sum(accepted for _, accepted in judged)
    assert 0.8 * accepted <= heard.total("accepted") <= accepted + CAP * len(prompts)
    assert heard.total("drafted") <= sum(drafted for drafted, _ in judged)
    outputs = {len(prompt): one for prompt, one in zip(prompts, truth(TOKENS), strict=True)}
    steps, checked = list(ended("logged").steps()), 0
    assert len({step.id for step in steps}) >= 6
    unlike = Counter(map(len, prompts))
    for step in steps:
        prompt_tokens = step.context_tokens - step.position
        if unlike[prompt_tokens] != 1 or step.position + step.accepted >= TOKENS - 1:
            continue
        after = np.array(outputs[prompt_tokens][step.position :])
        drafted = np.asarray(step.drafted_tokens)[: len(after)]
        same = drafted == after[: len(drafted)]
        assert step.accepted == (len(same) if same.all() else int(np.argmin(same)))
        checked += 1
    assert checked > 20
    check_sound(session)


def test_a_request_that_lost_a_step_is_written_no_further(
    served, prompts, truth, recorded, monkeypatch
):
    engine = served("eagle3")
    wanderer = Wanderer(engine)
    ended = recorded(engine, wanderer.session)
    lost = breaking(monkeypatch, wanderer.host, "note", 3)
    assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    # Of a step that was lost, the next one tells. The last request came after all that.
    counts = Counter(step.id for step in ended("logged").steps())
    assert len(counts) > 1
    assert sorted(counts.values())[-2] <= 3
    assert wanderer.session.breaker.counts == {"plan": len(lost)}


@pytest.mark.parametrize("trims", [True, False])
def test_shadow_mode_decides_and_verifies_nothing(served, prompts, truth, mode_path, trims):
    engine = served("eagle3", trims=trims)
    mode_path.write_text("shadow")
    session = engine.put(random_policy(2, True))
    engine.greedy([[5, 6, 7]], 12)  # where drafts are not trimmed, the scheduler hears of it late
    heard = Heard(session)
    assert engine.greedy(prompts, 24) == truth(24)
    assert heard.total("drafted") == 0
    assert heard.total("emitted_tokens") > 6 * 20
    check_sound(session)


def test_requests_are_recorded_whole_while_others_are_served(served, prompts, truth, recorded):
    engine = served("eagle3")
    session = engine.put(random_policy(2, True), record_fraction=0.5)
    ended = recorded(engine, session)
    for _ in range(2):
        assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    rows = [each for each in ended("dense").requests() if len(each.output_tokens) > 4]
    assert rows
    texts = {tuple(prompt): one for prompt, one in zip(prompts, truth(TOKENS), strict=True)}
    for row in rows:
        assert row.output_tokens.tolist() == texts[tuple(row.prompt_tokens.tolist())]
        assert (row.drafted_tokens[1:-1] >= 0).all()
    check_sound(session)
