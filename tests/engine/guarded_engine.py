"""An engine whose steps take what a test says: how its guard takes that, and what comes of it."""

from adaspec.policy.guard import PLAN, Guard
from adaspec.vllm.guarding import ATTRIBUTE, LAGS


class SlowSteps:
    """Gives an engine a guard that knows nothing, and its clock; notes the word of every step.

    A step without speculation takes a second, one with it `slow_s`.
    """

    def __init__(self, engine, runner, slow_s):
        self.engine, self.slow_s = engine, slow_s
        self.now_s, self.words = 0.0, []
        self.scheduler, self.timed = engine.scheduler, engine.scheduler.adaspec_timed
        self.timed.guard = Guard(lambda rows, context_tokens, prompt_tokens: 1.0, LAGS[runner])
        self._before = self.scheduler.update_from_output, self.timed.clock

    def __enter__(self):
        self.scheduler.update_from_output, self.timed.clock = self.update, lambda: self.now_s
        return self

    def __exit__(self, *error):
        self.scheduler.update_from_output, self.timed.clock = self._before

    def update(self, scheduler_output, output):
        guarded = getattr(scheduler_output, ATTRIBUTE, None)
        if guarded is not None:
            self.words.append(guarded.state)
            self.now_s += self.slow_s if guarded.state == PLAN else 1.0
        return self._before[0](scheduler_output, output)
