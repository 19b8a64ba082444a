from contextlib import contextmanager

import pytest
from heard import Heard
from wandering import wander


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


THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize(
    ("head", "method"),
    [
        ("eagle", "eagle"),
        pytest.param("draft", "draft_model", marks=THOROUGH),
    ],
)
def test_a_fixed_length_accepts_what_the_stock_method_does(engines, serve, prompts, head, method):
    stock = {"method": method, "model": head, "num_speculative_tokens": 4}
    expected = judged(engines(stock), prompts)
    assert sum(accepted for one in expected[1] for _, accepted in one) > 0
    outputs, steps = judged(serve(head, "fixed:neural:4")[0], prompts)
    assert outputs == expected[0]
    # Where two tokens are as likely to the drafter, batches of other rows may draft the other one.
    pairs = zip(steps, expected[1], strict=True)
    differ = [one for one, other in pairs if not alike(one, other)]
    assert len(differ) <= 1


@contextmanager
def forwards_of(engine):
    """Notes the drafter's real forwards in the block, one by one."""
    noted = []
    handle = engine.runner.drafter.model.register_forward_pre_hook(lambda *_: noted.append(1))
    try:
        yield noted
    finally:
        handle.remove()


@pytest.mark.parametrize("head", ["eagle", pytest.param("draft", marks=THOROUGH)])
def test_drafter_forwards_are_those_of_the_plan_and_the_keep_alive(serve, prompts, head):
    """The drafter runs as often as observers hear, and vLLM counts the same."""
    engine, wanderer = wander(serve, head)
    heard = Heard(wanderer.session)
    with forwards_of(engine) as noted:
        engine.greedy(prompts, 48)
    ran = heard["forwards"]
    assert len(noted) == sum(map(sum, ran)) > 0
    assert sum(drafting for drafting, _ in ran) == sum(
        event.drafts.drafted.shape[1] for event in heard["proposed"]
    )
    assert all(drafting == 0 or alive == 0 for drafting, alive in ran)
    by_vllm = [each for one in engine.judged.values() for each in one]
    assert heard.total("drafted") == sum(drafted for drafted, _ in by_vllm) > 0
    assert heard.total("accepted") == sum(accepted for _, accepted in by_vllm) > 0
    assert len(heard["admitted"]) == len(prompts)
