import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaspec.policy.guard import BASE, HOLD, KEEP, PLAN, PROBE
from adaspec.predict.model import LONGEST_NEURAL
from adaspec.vllm.options import MODES, Options
from adaspec.vllm.scheduler import (
    GUARD_ATTRIBUTE,
    LENGTH,
    WORDS,
    GuardReport,
    ModeFile,
    TimedSteps,
    Told,
    follow,
    following,
    state_of,
)

LONGEST = 48


class Scheduler:
    """As much of vLLM's as is followed, with steps of a number of requests that decode."""

    max_num_scheduled_tokens = 8192

    def __init__(self, rows=4):
        self.requests = {
            f"r{at}": SimpleNamespace(num_computed_tokens=100, cache_salt=None)
            for at in range(rows)
        }
        self.unfinished = True

    def schedule(self, drafted=0, prompt=0):
        tokens = dict.fromkeys(self.requests, 1 + drafted)
        if prompt:
            tokens["r0"] = prompt
        step = SimpleNamespace(
            num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=sum(tokens.values()),
            scheduled_new_reqs=[],
            scheduled_spec_decode_tokens={name: [7] * drafted for name in tokens if drafted},
            num_spec_tokens_to_schedule=5,
        )
        self._update_after_schedule(step)
        return step

    def _update_after_schedule(self, scheduler_output):
        pass

    def update_from_output(self, scheduler_output, model_runner_output):
        outputs = [SimpleNamespace(new_token_ids=each) for each in model_runner_output.delivered]
        return {0: SimpleNamespace(outputs=outputs)}

    def has_unfinished_requests(self):
        return self.unfinished


class Hearing:
    switches = 0

    def __init__(self):
        self.decided, self.noted, self.interrupted, self.state = [], [], 0, "plan"

    def decide(self, rows, context_tokens, prompt_tokens):
        self.decided.append((rows, context_tokens, prompt_tokens))
        return SimpleNamespace(state=self.state, number=len(self.decided))

    def note(self, decision, seconds, tokens, emitting):
        self.noted.append((decision.number, seconds, tokens, emitting))

    def rates(self, decision):
        return {"policy": 2.0, "none": 1.0}

    def slowness(self, decision):
        return 1.5

    def interrupt(self):
        self.interrupted += 1


def output_of(*counts):
    return SimpleNamespace(delivered=[[1] * count for count in counts])


def guarded():
    scheduler, guard = following(Scheduler)(), Hearing()
    clock = SimpleNamespace(now_s=0.0, serves=True)
    scheduler.adaspec_timed = TimedSteps(
        scheduler, guard, lambda: clock.serves, lambda: clock.now_s
    )
    return scheduler, guard, clock


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 3), st.integers(0, 3))
def test_a_step_takes_from_the_output_before_its_own_to_its_own(seed, most_in_flight, drafted):
    """A pause is nobody's time; nothing is delivered of who has ended, or behind a stop."""
    scheduler, guard, clock = guarded()
    rng, in_flight, expected, last_s = np.random.default_rng(seed), [], [], None
    for number in range(1, 41):
        if last_s is None:
            clock.now_s += 1000.0
        scheduler.unfinished = True
        in_flight.append((number, scheduler.schedule(drafted), clock.now_s))
        while len(in_flight) == most_in_flight or (in_flight and rng.random() < 0.2):
            clock.now_s += int(rng.integers(1, 9))
            ended, step, scheduled_s = in_flight.pop(0)
            counts = rng.integers(0, 4, rng.integers(1, 5)).tolist()
            scheduler.unfinished = bool(in_flight) or rng.random() < 0.8
            assert list(scheduler.update_from_output(step, output_of(*counts))) == [0]
            took_s = clock.now_s - (scheduled_s if last_s is None else last_s)
            expected.append((ended, took_s, sum(counts), np.count_nonzero(counts)))
            last_s = clock.now_s if scheduler.unfinished else None
            clock.now_s += 0.5  # what the host does between steps
    assert guard.noted == expected
    assert guard.decided == [(4, 400, 0)] * 40
    for _ in range(100):  # outputs that never come are forgotten
        scheduler.schedule()
    assert len(scheduler.adaspec_timed._in_flight) <= 16


def test_the_word_goes_with_the_step_to_all_ranks_and_prompts_are_seen(caplog):
    scheduler, guard, clock = guarded()
    step = scheduler.schedule(drafted=3, prompt=50)
    scheduler.schedule(drafted=3)
    scheduler.update_from_output(step, output_of(0, 4, 1, 2))
    assert guard.noted == [(1, 0.0, 7, 3)]
    clock.serves = False
    assert getattr(scheduler.schedule(), GUARD_ATTRIBUTE) is None
    assert guard.interrupted == 1
    clock.serves = True
    assert [prompt for *_, prompt in guard.decided] == [46, 0]
    guard.state = "hold"
    step = pickle.loads(pickle.dumps(scheduler.schedule()))
    said = GuardReport("hold", 0, {"policy": 2.0, "none": 1.0}, slowness=1.5)
    assert getattr(step, GUARD_ATTRIBUTE) == said
    assert caplog.text.count("steps take 1.5 times as long as the costs say") == 1
    assert state_of(getattr(step, GUARD_ATTRIBUTE)) == "hold"
    assert state_of(None) == "plan"


def test_a_guard_that_fails_lets_speculation_be_and_is_counted(caplog):
    scheduler, guard, _ = guarded()
    guard.note = None
    scheduler.update_from_output(scheduler.schedule(), output_of(1))
    steps, told = [], []
    session = SimpleNamespace(
        observers=SimpleNamespace(notify=lambda *event: told.append(event)),
        breaker=SimpleNamespace(off=False),
        take_slowness=lambda slowness: None,
    )
    for _ in range(3):
        steps.append(scheduler.schedule())
        scheduler.update_from_output(steps[-1], output_of(1))
        follow(session, steps[-1])
        assert session.guard_state == "plan"
    assert "not callable" in getattr(steps[0], GUARD_ATTRIBUTE).problem
    assert [event for event in told if event[0] == "fault"] == [("fault", "guard", False)]
    assert caplog.text.count("the guard failed") == 1


def test_drafts_leave_half_of_a_step_to_prompts_and_are_as_long_as_the_worker_says():
    scheduler = following(Scheduler)()
    scheduler.num_spec_tokens, scheduler.num_lookahead_tokens = LONGEST, LONGEST
    scheduler.adaspec_make_room(Options())
    assert scheduler.num_lookahead_tokens == LONGEST_NEURAL
    in_one_pass = following(Scheduler)()
    in_one_pass.num_spec_tokens = in_one_pass.num_lookahead_tokens = LONGEST
    in_one_pass.adaspec_make_room(Options(draft_method="dflash"))
    assert in_one_pass.num_lookahead_tokens == LONGEST

    def scheduled(running, word=PLAN, told=None):
        if told is not None:
            output = SimpleNamespace(delivered=[], **{LENGTH: told})
            scheduler.update_from_output(None, output)
        scheduler.running = [None] * running
        step = SimpleNamespace(num_spec_tokens_to_schedule=LONGEST)
        setattr(step, GUARD_ATTRIBUTE, GuardReport(word, 0, {}))
        scheduler._update_after_schedule(step)
        return step.num_spec_tokens_to_schedule

    for running, length in ((0, LONGEST), (1, LONGEST), (64, LONGEST), (128, 31), (256, 15)):
        assert scheduled(running) == length
        assert running * (1 + length) <= 4096
    assert scheduled(5000) == 0
    assert scheduled(4, told=6) == 6
    assert scheduled(4) == 6
    assert {scheduled(4, word) for word in (PROBE, KEEP, HOLD)} == {0}
    assert scheduled(256, told=30) == 15
    assert scheduled(4, BASE) == 30


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr("adaspec.vllm.scheduler.PERIOD_S", 0.0)
    return tmp_path / "mode"


def test_what_the_file_says_holds_from_the_next_look_on(path, monkeypatch):
    assert set(WORDS) < set(MODES)
    path.write_text("off\n")
    file = ModeFile(str(path), "serve")
    assert file.read() == Told("off", "")
    for word in ("serve", " off ", "serve"):
        path.write_text(word)
        assert file.read() == Told(word.strip(), "")
        assert file.read() == Told(word.strip(), "")
    monkeypatch.setattr("adaspec.vllm.scheduler.PERIOD_S", 3600.0)
    file.read()
    path.write_text("off")
    assert file.read().mode == "serve"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        *((word, "write serve or off") for word in ("", "record", "serve\noff", "x" * 5000)),
        ("shadow", "it went in 0.2"),
        (None, "No such file"),
    ],
)
def test_what_says_no_mode_keeps_the_mode_and_is_told_once(path, caplog, content, says):
    path.write_text("off")
    file = ModeFile(str(path), "serve")
    file.read()
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    told = file.read()
    assert told.mode == "off"
    assert told.problem.isprintable()
    assert says in told.problem
    assert file.read() == Told("off", "")
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 1
    path.write_text("serve")
    assert file.read() == Told("serve", "")
