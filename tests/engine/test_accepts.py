"""A fixed length accepts what stock vLLM accepts with its own method, and forwards are counted."""

import pytest

from adaspec.vllm.events import Observer
from policies import Wanderer


def judged(engine, prompts):
    """(drafted, accepted) of every verified draft, request by request in order."""
    engine.judged.clear()
    outputs = engine.greedy(prompts, 48)
    return outputs, [engine.judged[name] for name in sorted(engine.judged, key=int)]


def alike(steps, stock):
    """Whether steps are the same, but for drafts that would reach past their output's end."""
    same = 0
    while same < min(len(steps), len(stock)) and steps[same] == stock[same]:
        same += 1
    if same == len(stock):
        return same == len(steps)
    longest, last = stock[same][0], steps[same:]
    emitted = sum(accepted + 1 for _, accepted in last)
    return emitted <= longest and all(drafted < longest for drafted, _ in last)


@pytest.mark.parametrize(
    "head", ["eagle", "eagle3", pytest.param("draft", marks=pytest.mark.thorough)]
)
def test_fixed_neural_accepts_what_the_stock_method_does(engines, prompts, head):
    stock = {"method": {"draft": "draft_model"}.get(head, head), "model": head}
    expected = judged(engines({**stock, "num_speculative_tokens": 4}), prompts)
    assert sum(accepted for one in expected[1] for _, accepted in one) > 0
    engine = engines(
        {
            "method": "adaspec",
            "model": head,
            "policy": "fixed:neural:4",
            "num_speculative_tokens": 4,
        }
    )
    outputs, steps = judged(engine, prompts)
    assert outputs == expected[0]
    # Where two tokens are as likely to the drafter, batches of other rows may draft the other one.
    pairs = zip(steps, expected[1], strict=True)
    differ = [one for one, other in pairs if not alike(one, other)]
    assert len(differ) <= 1


def test_fixed_ngram_vllm_accepts_what_the_stock_method_does(engines, prompts):
    stock = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}
    expected = judged(engines({**stock, "num_speculative_tokens": 6}), prompts)
    assert sum(accepted for one in expected[1] for _, accepted in one) > 0
    engine = engines({"method": "adaspec", "policy": "fixed:ngram-vllm:6:2:5"})
    outputs, steps = judged(engine, prompts)
    assert outputs == expected[0]
    assert all(alike(one, other) for one, other in zip(steps, expected[1], strict=True))


class Ledger(Observer):
    """Writes down what the session says of forwards and plans."""

    def __init__(self):
        self.drafting, self.keep_alive, self.planned, self.counts = [], [], [], []
        self.drafted = self.accepted = self.proposed_tokens = 0
        self.entries, self.gone = [], []

    def forwards(self, step, drafting, keep_alive, rows):
        self.drafting.append(drafting)
        self.keep_alive.append(keep_alive)

    def proposed(self, proposed):
        self.planned.append(proposed.step.planned)
        self.counts.append(proposed.drafts.count)
        self.proposed_tokens += sum(map(len, proposed.proposed))

    def verified(self, event):
        self.drafted += int(event.drafted.sum())
        self.accepted += int(event.accepted.sum())

    def entered(self, request, prompt_tokens, recorded, max_tokens, greedy):
        self.entries.append(request)

    def left(self, requests):
        self.gone += requests


def forwards_of(engine):
    """Counts the drafter's real forwards from here on."""
    model, count = engine.runner.drafter.model, [0]
    handle = model.register_forward_pre_hook(lambda *_: count.__setitem__(0, count[0] + 1))
    return count, handle


@pytest.mark.parametrize("head", ["eagle", "draft"])
def test_drafter_forwards_are_those_of_the_plan_and_the_keep_alive(engines, prompts, head):
    engine = engines({"method": "adaspec", "model": head, "num_speculative_tokens": 24})
    policy, ledger = Wanderer(), Ledger()
    session = engine.put(policy)
    session.observers.add(ledger)
    engine.judged.clear()
    count, handle = forwards_of(engine)
    engine.greedy(prompts, 48)
    handle.remove()
    assert count[0] == sum(ledger.drafting) + sum(ledger.keep_alive)
    assert sum(ledger.drafting) == sum(ledger.counts)
    assert all(n <= most for n, most in zip(ledger.counts, ledger.planned, strict=True))
    assert all(
        n == 0 or alive == 0 for n, alive in zip(ledger.drafting, ledger.keep_alive, strict=True)
    )
    by_vllm = [each for one in engine.judged.values() for each in one]
    assert ledger.drafted == sum(drafted for drafted, _ in by_vllm)
    assert ledger.accepted == sum(accepted for _, accepted in by_vllm)
    assert len(ledger.entries) == len(prompts)


def test_a_policy_that_refuses_every_request_never_runs_the_drafter(engines, prompts, truth):
    expected = truth()
    engine = engines({"method": "adaspec", "model": "eagle", "num_speculative_tokens": 24})
    engine.put("fixed:ngram:8:2")
    count, handle = forwards_of(engine)
    assert engine.greedy(prompts, 48) == expected
    handle.remove()
    assert count[0] == 0


@pytest.mark.parametrize("mode", ["shadow", "record"])
def test_modes_that_only_watch_propose_nothing_and_see_everything(
    engines, prompts, truth, mode, tmp_path
):
    expected = truth()
    engine = engines(
        {
            "method": "adaspec",
            "model": "eagle",
            "mode": mode,
            "num_speculative_tokens": 8,
            "trace_dir": str(tmp_path / "traces"),
        }
    )
    ledger = Ledger()
    engine.session.observers.add(ledger)
    engine.judged.clear()
    assert engine.greedy(prompts, 48) == expected
    assert not engine.judged
    assert ledger.proposed_tokens == 0
    assert sum(ledger.counts) > 0
    if mode == "record":
        assert set(ledger.counts) == {8}
