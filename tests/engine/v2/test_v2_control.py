"""What operators and requests say while a V2 engine serves: outputs stay, drafts follow."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from heard import Heard
from live_engine import sampling
from wandering import CAP, Wanderer, check_sound

TOKENS = 24


@pytest.mark.parametrize("trims", [False, True])
def test_the_mode_changes_within_a_step_and_outputs_do_not(
    served, truth, prompts, mode_path, monkeypatch, trims
):
    engine = served("eagle3", trims=trims)
    session = Wanderer(engine).session
    heard = Heard(session)
    execute, schedule = engine.runner.execute_model, engine.scheduler.schedule
    words, scheduled, seen = ("serve", "off", "serve", "shadow", "serve"), [0], []

    def write_and_schedule(*args):
        scheduled[0] += 1
        mode_path.write_text(words[scheduled[0] // 2 % len(words)])
        return schedule(*args)

    def execute_and_note(scheduler_output, *args, **kwargs):
        done = execute(scheduler_output, *args, **kwargs)
        if scheduler_output.total_num_scheduled_tokens:
            seen.append((session.mode, session._proposes and session._budget))
        return done

    monkeypatch.setattr(engine.scheduler, "schedule", write_and_schedule)
    monkeypatch.setattr(engine.runner, "execute_model", execute_and_note)
    assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    assert {mode for mode, _ in seen} == {"serve", "shadow", "off"}
    if trims:
        assert all(budget == 0 for mode, budget in seen if mode != "serve")
    assert any(before[0] == "off" and after[0] == "serve" for before, after in pairwise(seen))
    assert heard.total("drafted") > 0
    check_sound(session)


def test_requests_say_what_is_drafted_for_them_alone(served, truth, prompts):
    engine = served("eagle3")
    session = Wanderer(engine).session
    heard = Heard(session)
    asked = [
        {},
        {"adaspec": "off"},
        {"adaspec_cap": 2},
        {"adaspec_source": "ngram"},
        {"adaspec_source": "neural"},
        {},
    ]
    found = engine.outputs(prompts, [sampling(TOKENS, extra_args=each) for each in asked])
    assert [one[0] for one in found] == truth(TOKENS)
    longest = defaultdict(lambda: np.zeros(3, int))  # by request: neural, copied, both
    for event in heard["proposed"]:
        rows = zip(event.requests, event.neural_len, event.ngram_len, strict=True)
        for name, neural, copied in rows:
            of = longest[int(name.split("-")[0])]
            of[:] = np.maximum(of, [neural, copied, neural + copied])
    free, off, capped, copying, drafting, also_free = (longest[name] for name in sorted(longest))
    assert max(free[2], also_free[2]) > 2
    assert off[2] == 0
    assert capped[2] <= 2
    assert copying[0] == 0
    assert drafting[1] == 0
    check_sound(session)


def test_an_operator_limits_contexts_and_all_drafts_of_a_step(served, truth, prompts):
    engine = served("eagle3")
    longest = max(map(len, prompts)) + TOKENS // 2
    limits = {"max_drafted_tokens": 5, "max_context_tokens": longest}
    session = Wanderer(engine, **limits).session
    heard = Heard(session)
    assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    steps = [
        (event.drafts.context, event.neural_len + event.ngram_len) for event in heard["proposed"]
    ]
    assert max(int(lengths.sum()) for _, lengths in steps) == 5
    assert any(context.max() > longest for context, _ in steps)
    assert not any(lengths[context > longest + CAP].any() for context, lengths in steps)
    check_sound(session)
