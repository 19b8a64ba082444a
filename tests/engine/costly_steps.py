"""An engine whose clock says what its steps would take elsewhere, and what is learned of that."""

from unittest import mock

from adaspec.cost.model import step_s
from adaspec.policy.guard import Guard
from adaspec.vllm.guarding import LAGS

COSTLY = 4.0
"""A verified token takes so many times what the cost model says."""


class CostlySteps:
    """Gives an engine a clock by which verified tokens are costly, and a guard that is content."""

    def __init__(self, engine, runner, serves):
        self.engine, self.serves, self.now_s = engine, serves, 0.0
        self.refit = serves.clocked.refit
        costs = self.refit.costs
        self._true = costs._replace(per_token_s=costs.per_token_s * COSTLY)
        self.timed = engine.scheduler.adaspec_timed
        self._guard = Guard(lambda rows, context_tokens: 1e6, LAGS[runner])
        self._patches = []

    def __enter__(self):
        end = self.timed.end

        def end_later(step, output):
            """An asynchronous engine has begun the next step by now, so the number tells."""
            number = self.timed._in_flight.get(id(step), (None, 0.0, 0))[2]
            shape = self.serves.clocked._shapes.get(number)
            if shape is not None:
                self.now_s += float(step_s(self._true, shape))
            end(step, output)

        self._patches = [
            mock.patch.object(self.timed, "end", end_later),
            mock.patch.object(self.timed, "clock", lambda: self.now_s),
            mock.patch.object(self.timed, "guard", self._guard),
        ]
        for each in self._patches:
            each.start()
        return self

    def __exit__(self, *error):
        for each in self._patches:
            each.stop()

    @property
    def token_over_step(self):
        """How much more a token takes than was said, over the same of a whole step.

        At the load of which most steps were seen: what is known of others rests on few.
        """
        most = max(self.refit._loads.values(), key=lambda load: load["seen"][0])
        step, token, _ = most["factors"][0]
        return token / step
