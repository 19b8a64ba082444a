"""A server as it is by default: it measures its costs as it starts, decides by them, and its guard
holds speculation off where it is slow, and lets it back in.
"""

import pytest
from heard import Heard
from wandering import CAP, Wanderer, check_sound

from adaspec.cost.load import cost_from_document
from adaspec.cost.model import plain_seconds
from adaspec.policy.guard import PLAN, Guard
from adaspec.vllm import measuring
from adaspec.vllm.patching import OPTIONS_ATTRIBUTE
from adaspec.vllm.scheduler import GUARD_ATTRIBUTE, LAGS

TOKENS = 32
BY_DEFAULT = {"cost": None, "guard": True}


@pytest.mark.parametrize("head", ["eagle3", pytest.param("dflash", marks=pytest.mark.thorough)])
def test_costs_are_measured_at_start_and_outputs_are_as_they_were(
    served, prompts, truth, monkeypatch, head
):
    monkeypatch.setattr(measuring, "ROUNDS", 1)
    monkeypatch.setattr(measuring, "MOST_SIZES", 5)
    monkeypatch.setattr(measuring, "MOST_S", 600.0)
    engine = served(head, config=BY_DEFAULT)
    cost = engine.session.serving.setup.cost
    assert cost.name == measuring.NAME
    # Without graphs, as far as eight rows with drafts go.
    longest = 8 * (1 + CAP)
    assert (cost.tokens[0], cost.tokens[-1], cost.largest_graph) == (1, longest, 0)
    table_s = engine.session.decider.costs.table_s
    assert table_s[longest] == pytest.approx(cost.seconds[-1])
    assert cost.forward_s + cost.forward_per_row_s > 0
    # The guard, in the process that schedules, asks the same costs.
    options = getattr(engine.runner.vllm_config.speculative_config, OPTIONS_ATTRIBUTE)
    assert cost_from_document(options.costs, "costs") == cost
    guard = engine.scheduler.adaspec_timed.guard
    assert guard._plain_s(4, 300, 0) == plain_seconds(cost)(4, 300, 0)
    assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    assert not engine.session.breaker.counts
    assert sum(drafted for each in engine.judged.values() for drafted, _ in each) > 0


class SlowSteps:
    """Gives an engine a guard that knows nothing, and its clock; notes the state of every step.

    A step without speculation takes a second, one with it `slow_s`.
    """

    def __init__(self, engine, monkeypatch):
        self.slow_s, self.now_s, self.states = 4.0, 0.0, []
        scheduler, timed = engine.scheduler, engine.scheduler.adaspec_timed
        guard = Guard(lambda rows, context_tokens, prompt_tokens: 1.0, LAGS["V2"])
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


def test_speculation_is_held_off_while_it_is_slow_and_comes_back(
    served, truth, prompts, monkeypatch
):
    expected = truth(2 * TOKENS)[:2]
    engine = served("eagle3", config=BY_DEFAULT)
    session = Wanderer(engine).session
    heard, steps = Heard(session), SlowSteps(engine, monkeypatch)

    def ask_until(state):
        # A hold takes six pairs and two short holds before, and lasts as long as its trial cost.
        for _ in range(60):
            steps.states = []
            assert engine.greedy(prompts[:2], 2 * TOKENS) == expected
            if steps.share_of(state) > 0.5:
                return
        pytest.fail(f"most steps are never of state {state!r}")

    ask_until("hold")
    assert {"plan", "probe", "hold"} <= {each.state for each in heard["guarded"]}
    assert not session.needs_keep_alive
    before, steps.slow_s = heard.total("drafted"), 0.1
    ask_until("plan")
    assert heard.total("drafted") > before
    check_sound(session)
