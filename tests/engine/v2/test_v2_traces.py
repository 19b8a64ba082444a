"""What is counted and written down on V2 is what the engine did."""

from collections import Counter

import numpy as np
import pytest
from wandering import CAP, Wanderer, check_sound

from adaspec.trace.reader import TraceReader

TOKENS = 32


class Ledger:
    """An observer that adds up."""

    def __init__(self):
        self.drafted = self.accepted = self.emitted = 0
        self.left = []

    def verified(self, event):
        self.drafted += int(event.drafted.sum())
        self.accepted += int(event.accepted.sum())
        self.emitted += int(event.emitted_tokens.sum())

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *values: None


def recorded(engine, wanderer, folder, **changes):
    """Record what the worker does from here on; returns what ends it."""
    from adaspec.vllm.metrics import Counters
    from adaspec.vllm.options import Options
    from adaspec.vllm.tracing import recorder_of

    recorder = recorder_of(
        Options(trace_dir=str(folder)), wanderer.worker.serving, Counters(None, {})
    )
    wanderer.worker.observers.add(recorder)
    return recorder


def test_what_is_learned_is_what_was_verified(served, prompts, truth):
    expected = truth(TOKENS)
    engine = served("eagle3")
    wanderer, ledger = Wanderer(engine), Ledger()
    wanderer.worker.observers.add(ledger)
    engine.judged.clear()
    assert engine.greedy(prompts, TOKENS) == expected
    judged = [step for one in engine.judged.values() for step in one]
    # vLLM counts what was scheduled, and cuts the last step of a request to its length.
    accepted = sum(accepted for _, accepted in judged)
    assert 0.8 * accepted <= ledger.accepted <= accepted + CAP * len(prompts)
    assert ledger.drafted <= sum(drafted for drafted, _ in judged)
    check_sound(wanderer.worker)


def test_logged_traces_hold_the_steps(served, prompts, truth, tmp_path):
    expected = truth(TOKENS)
    engine = served("eagle3")
    wanderer = Wanderer(engine)
    recorder = recorded(engine, wanderer, tmp_path / "traces")
    assert engine.greedy(prompts, TOKENS) == expected
    engine.greedy([[5, 6, 7]], 4)  # whoever left is noticed in the next step
    recorder.close()
    (folder,) = (tmp_path / "traces").glob("logged-*")
    by_id = {}
    for step in TraceReader(folder).steps():
        by_id.setdefault(step.id, []).append(step)
    texts = {tuple(prompt): output for prompt, output in zip(prompts, truth(TOKENS), strict=True)}
    assert len(by_id) >= 6
    checked = 0
    for steps in by_id.values():
        for step in steps:
            prompt_tokens = step.context_tokens - step.position
            known = [o for p, o in texts.items() if len(p) == prompt_tokens]
            if len(known) != 1:
                continue
            after = np.array(known[0][step.position :])
            drafted = np.asarray(step.drafted_tokens)[: len(after)]
            same = drafted == after[: len(drafted)]
            right = len(same) if same.all() else int(np.argmin(same))
            if step.position + step.accepted < TOKENS - 1:
                assert step.accepted == right
                checked += 1
    assert checked > 20
    check_sound(wanderer.worker)


def test_a_request_that_lost_a_step_is_written_no_further(served, prompts, truth, tmp_path):
    expected = truth(TOKENS)
    engine = served("eagle3")
    wanderer = Wanderer(engine)
    recorder = recorded(engine, wanderer, tmp_path / "traces")
    note, calls = wanderer.host.note, [0]

    def broken(*facts):
        calls[0] += 1
        if calls[0] == 3:
            raise RuntimeError("a report is lost")
        return note(*facts)

    wanderer.host.note = broken
    assert engine.greedy(prompts, TOKENS) == expected
    engine.greedy([[5, 6, 7]], 4)
    recorder.close()
    (folder,) = (tmp_path / "traces").glob("logged-*")
    # Of a step that was lost, the next one tells. The last request came after all that.
    counts = Counter(step.id for step in TraceReader(folder).steps())
    assert len(counts) > 1
    assert sorted(counts.values())[-2] <= 3
    assert wanderer.worker.breaker.counts == {"plan": 1}


@pytest.mark.parametrize("trims", [True, False])
def test_shadow_mode_decides_and_verifies_nothing(served, prompts, truth, trims):
    expected = truth(24)
    engine = served("eagle3", trims=trims)
    from wandering import random_policy

    from adaspec.vllm.v2.attachment import serve_by

    worker = serve_by(engine.runner, random_policy(2, True), mode="shadow")
    ledger = Ledger()
    worker.observers.add(ledger)
    engine.greedy([[5, 6, 7]], 12)  # where drafts are not trimmed, the scheduler hears of it late
    ledger.drafted = 0
    assert engine.greedy(prompts, 24) == expected
    assert ledger.drafted == 0
    assert ledger.emitted > 6 * 20
    check_sound(worker)


def test_requests_are_recorded_whole_while_others_are_served(served, prompts, truth, tmp_path):
    expected = truth(TOKENS)
    engine = served("eagle3")
    from wandering import random_policy

    from adaspec.vllm.v2.attachment import serve_by

    worker = serve_by(engine.runner, random_policy(2, True), record_fraction=0.5, record_cap=4)
    wanderer = type("Held", (), {"worker": worker})
    recorder = recorded(engine, wanderer, tmp_path / "traces")
    assert engine.greedy(prompts, TOKENS) == expected
    assert engine.greedy(prompts, TOKENS) == expected
    engine.greedy([[5, 6, 7]], 4)
    recorder.close()
    (folder,) = (tmp_path / "traces").glob("dense-*")
    rows = [each for each in TraceReader(folder).requests() if len(each.output_tokens) > 4]
    assert rows
    texts = {tuple(prompt): output for prompt, output in zip(prompts, truth(TOKENS), strict=True)}
    for row in rows:
        assert row.output_tokens.tolist() == texts[tuple(row.prompt_tokens.tolist())][:TOKENS]
        assert len(row.output_tokens) == TOKENS
        assert (row.drafted_tokens[1:-1] >= 0).all()
    check_sound(worker)
    assert CAP >= 4
