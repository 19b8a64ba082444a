"""What operators and requests say while a V2 engine serves: outputs stay, drafts follow."""

from itertools import pairwise

import pytest
from heard import Heard
from wandering import Wanderer, check_sound

TOKENS = 24


@pytest.mark.parametrize("trims", [False, True])
def test_the_mode_changes_within_a_step_and_outputs_do_not(
    served, truth, prompts, mode_path, monkeypatch, trims
):
    engine = served("eagle3", trims=trims)
    session = Wanderer(engine).session
    heard = Heard(session)
    execute, schedule = engine.runner.execute_model, engine.scheduler.schedule
    words, scheduled, seen = ("serve", "off", "serve"), [0], []

    def write_and_schedule(*args):
        scheduled[0] += 1
        mode_path.write_text(words[scheduled[0] // 2 % len(words)])
        return schedule(*args)

    def execute_and_note(scheduler_output, *args, **kwargs):
        done = execute(scheduler_output, *args, **kwargs)
        if scheduler_output.total_num_scheduled_tokens:
            seen.append((session.mode, session._budget))
        return done

    monkeypatch.setattr(engine.scheduler, "schedule", write_and_schedule)
    monkeypatch.setattr(engine.runner, "execute_model", execute_and_note)
    assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    assert {mode for mode, _ in seen} == {"serve", "off"}
    if trims:
        assert all(budget == 0 for mode, budget in seen if mode != "serve")
    assert any(before[0] == "off" and after[0] == "serve" for before, after in pairwise(seen))
    assert heard.total("drafted") > 0
    check_sound(session)
