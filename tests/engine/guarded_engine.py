"""An engine whose steps take what a test says: how its guard takes that, and what comes of it."""

from heard import Heard

from adaspec.policy.guard import PLAN, Guard
from adaspec.vllm.timed_steps import GUARD_ATTRIBUTE, LAGS


class SlowSteps:
    """Gives an engine a guard that knows nothing, and its clock; notes the state of every step.

    A step without speculation takes a second, one with it `slow_s`.
    """

    def __init__(self, engine, runner, monkeypatch):
        self.slow_s, self.now_s, self.states = 15.0, 0.0, []
        scheduler, timed = engine.scheduler, engine.scheduler.adaspec_timed
        guard = Guard(lambda rows, context_tokens, prompt_tokens: 1.0, LAGS[runner])
        self._update = scheduler.update_from_output
        monkeypatch.setattr(scheduler, "update_from_output", self.update)
        monkeypatch.setattr(timed, "guard", guard)
        monkeypatch.setattr(timed, "clock", lambda: self.now_s)

    def update(self, scheduler_output, output):
        guarded = getattr(scheduler_output, GUARD_ATTRIBUTE, None)
        if guarded is not None:
            self.states.append(guarded.state)
            self.now_s += self.slow_s if guarded.state == PLAN else 1.0
        return self._update(scheduler_output, output)

    def share_of(self, state):
        return self.states.count(state) / len(self.states)


def check_guard(engine, session, runner, ask, monkeypatch):
    """Speculation is held off while it is slow, and comes back; `ask` has requests answered."""
    heard, steps = Heard(session), SlowSteps(engine, runner, monkeypatch)
    for _ in range(12):  # nothing is held off in the first steps
        ask()
        if steps.share_of("hold") > 0.5:
            break
    assert {"plan", "probe", "hold"} == {each.state for each in heard["guarded"]}
    assert steps.share_of("hold") > 0.5
    assert not session.needs_keep_alive
    before, steps.slow_s = heard.total("drafted"), 0.1
    for _ in range(12):
        steps.states = []
        ask()
        if steps.share_of("plan") > 0.6:
            break
    assert steps.share_of("plan") > 0.6
    assert heard.total("drafted") > before
