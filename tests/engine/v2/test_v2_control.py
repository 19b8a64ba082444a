"""What operators and requests say while a V2 engine serves: outputs stay, drafts follow."""

from itertools import pairwise

import pytest
from wandering import CAP, Wanderer, check_sound

from adaspec.vllm.events import Observer

TOKENS = 24


class Drafts(Observer):
    """Keeps each request's drafts, and counts what was verified of them."""

    def __init__(self):
        self.verified_tokens, self.of, self.steps = 0, {}, []

    def proposed(self, event):
        rows = zip(event.requests, event.neural_len, event.ngram_len, strict=True)
        for name, neural, ngram in rows:
            self.of.setdefault(int(name.split("-")[0]), []).append((int(neural), int(ngram)))
        lengths = event.neural_len + event.ngram_len
        self.steps.append((event.context_tokens, lengths))

    def verified(self, event):
        self.verified_tokens += int(event.drafted.sum())


def watched(engine, **changes):
    """A session that decides at random, and its drafts."""
    session, drafts = Wanderer(engine, **changes).session, Drafts()
    session.observers.add(drafts)
    return session, drafts


@pytest.mark.parametrize("trims", [False, True])
def test_the_mode_changes_within_a_step_and_outputs_do_not(
    served, truth, prompts, mode_path, monkeypatch, trims
):
    engine = served("eagle3", trims=trims)
    session, drafts = watched(engine)
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
    assert drafts.verified_tokens > 0
    check_sound(session)


def test_requests_say_what_is_drafted_for_them_alone(served, truth, prompts):
    from vllm import SamplingParams

    engine = served("eagle3")
    session, drafts = watched(engine)
    asked = [
        {},
        {"adaspec": "off"},
        {"adaspec_cap": 2},
        {"adaspec_source": "ngram"},
        {"adaspec_source": "neural"},
        {},
    ]
    params = [
        SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, extra_args=each)
        for each in asked
    ]
    found = engine.outputs(prompts, params)
    assert [one[0] for one in found] == truth(TOKENS)
    of = [drafts.of[name] for name in sorted(drafts.of)]
    assert len(of) == len(asked)
    assert max(neural + ngram for neural, ngram in of[0] + of[5]) > 2
    assert not any(neural + ngram for neural, ngram in of[1])
    assert max(neural + ngram for neural, ngram in of[2]) <= 2
    assert not any(neural for neural, _ in of[3])
    assert not any(ngram for _, ngram in of[4])
    check_sound(session)


def test_an_operator_limits_contexts_and_all_drafts_of_a_step(served, truth, prompts):
    engine = served("eagle3")
    longest = max(map(len, prompts)) + TOKENS // 2
    session, drafts = watched(engine, max_drafted_tokens=5, max_context_tokens=longest)
    assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    assert max(int(lengths.sum()) for _, lengths in drafts.steps) == 5
    assert any(context.max() > longest for context, _ in drafts.steps)
    assert not any(lengths[context > longest + CAP].any() for context, lengths in drafts.steps)
    check_sound(session)
