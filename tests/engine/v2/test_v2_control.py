"""What operators and requests say while a V2 engine serves: outputs stay, drafts follow."""

from itertools import pairwise

import pytest
from wandering import CAP, Wanderer, check_sound

TOKENS = 24


class Drafts:
    """An observer that keeps each request's drafts, and counts what was verified of them."""

    def __init__(self):
        self.verified_tokens, self.of = 0, {}

    def proposed(self, event):
        rows = zip(event.requests, event.cut.neural_len, event.cut.ngram_len, strict=True)
        for name, neural, ngram in rows:
            self.of.setdefault(int(name.split("-")[0]), []).append((int(neural), int(ngram)))

    def verified(self, event):
        self.verified_tokens += int(event.drafted.sum())

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *values: None


@pytest.fixture
def controlled(served, truth, tmp_path_factory, monkeypatch):
    """Makes an engine with a mode file that is looked at in every step; and the file."""
    from adaspec.vllm import mode_file

    truth(TOKENS)  # an engine of its own, of which there is one at a time
    monkeypatch.setattr(mode_file, "PERIOD_S", 0.0)
    path = tmp_path_factory.getbasetemp() / "mode"
    path.write_text("serve")

    def make(trims=True):
        return served("eagle3", trims=trims, config={"mode_file": str(path)})

    return make, path


@pytest.mark.parametrize("trims", [False, True])
def test_the_mode_changes_within_a_step_and_outputs_do_not(controlled, truth, prompts, trims):
    make, path = controlled
    engine = make(trims)
    worker, drafts = Wanderer(engine).worker, Drafts()
    worker.observers.add(drafts)
    execute, seen = engine.runner.execute_model, []
    words = ("serve", "off", "serve", "shadow", "serve")
    scheduled = [0]
    schedule = engine.scheduler.schedule

    def write_and_schedule(*args):
        scheduled[0] += 1
        path.write_text(words[scheduled[0] // 2 % len(words)])
        return schedule(*args)

    def execute_and_note(scheduler_output, *args, **kwargs):
        done = execute(scheduler_output, *args, **kwargs)
        if scheduler_output.total_num_scheduled_tokens:
            seen.append((worker.mode, worker._budget))
        return done

    engine.scheduler.schedule = write_and_schedule
    engine.runner.execute_model = execute_and_note
    try:
        assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    finally:
        engine.scheduler.schedule, engine.runner.execute_model = schedule, execute
    assert {mode for mode, _ in seen} == {"serve", "shadow", "off"}
    if trims:
        assert all(budget == 0 for mode, budget in seen if mode != "serve")
    assert any(before[0] == "off" and after[0] == "serve" for before, after in pairwise(seen))
    assert drafts.verified_tokens > 0
    check_sound(worker)


def test_requests_say_what_is_drafted_for_them_alone(controlled, truth, prompts):
    from vllm import SamplingParams

    engine = controlled[0]()
    worker, drafts = Wanderer(engine).worker, Drafts()
    worker.observers.add(drafts)
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
    assert CAP > 2
    check_sound(worker)


def test_an_operator_limits_contexts_and_all_drafts_of_a_step(controlled, truth, prompts):
    engine = controlled[0]()
    longest = max(map(len, prompts)) + TOKENS // 2
    changes = {"max_drafted_tokens": 5, "max_context_tokens": longest}
    worker, steps = Wanderer(engine, **changes).worker, []

    class Listener(Drafts):
        def proposed(self, event):
            lengths = event.cut.neural_len + event.cut.ngram_len
            steps.append((event.step.context_tokens, lengths))

    worker.observers.add(Listener())
    assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    assert max(int(lengths.sum()) for _, lengths in steps) == 5
    assert any(context.max() > longest for context, _ in steps)
    assert not any(lengths[context > longest + CAP].any() for context, lengths in steps)
    check_sound(worker)
