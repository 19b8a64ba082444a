"""How long the drafts are that an engine on V2 schedules."""

from types import SimpleNamespace

import pytest

from adaspec.policy.guard import HOLD, PLAN
from adaspec.vllm.guarding import ATTRIBUTE, Guarded
from adaspec.vllm.scheduler import LENGTH, following

LONGEST = 48


class Scheduler:
    """As much of vLLM's as is followed."""

    max_num_scheduled_tokens = 8192

    def _update_after_schedule(self, scheduler_output):
        pass

    def update_from_output(self, scheduler_output, model_runner_output):
        pass


@pytest.fixture
def scheduled():
    """Schedules a step of so many requests by the guard's state; how long its drafts are."""
    scheduler = following(Scheduler)()
    scheduler.adaspec_sets_length = True

    def schedule(running, word=PLAN, told=None):
        if told is not None:
            scheduler.update_from_output(None, SimpleNamespace(**{LENGTH: told}))
        scheduler.running = [None] * running
        step = SimpleNamespace(num_spec_tokens_to_schedule=LONGEST)
        setattr(step, ATTRIBUTE, Guarded(word, 0, 1.0, 1.0))
        scheduler._update_after_schedule(step)
        return step.num_spec_tokens_to_schedule

    return schedule


def test_drafts_leave_half_of_a_step_to_prompts(scheduled):
    for running, length in ((0, LONGEST), (1, LONGEST), (64, LONGEST), (128, 31), (256, 15)):
        assert scheduled(running) == length
        assert running * (1 + length) <= 4096
    assert scheduled(5000) == 0


def test_they_are_as_long_as_the_worker_says_unless_speculation_is_held_off(scheduled):
    assert scheduled(4, told=6) == 6
    assert scheduled(4) == 6
    assert scheduled(256, told=30) == 15
    assert scheduled(4, HOLD) == 0
