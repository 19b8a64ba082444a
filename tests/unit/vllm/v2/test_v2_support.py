"""Which model runner serves, and why, is said before anything starts."""

import pytest
from random_models import random_model
from v2_fakes import no_tables

from adaspec.errors import ServingError
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.spec import parse_policy
from adaspec.vllm.patching import V2_VARIABLE
from adaspec.vllm.v2.support import runner_of

LEARNED = LearnedPolicy("learned", random_model(1, no_tables(), evidence=True), 8, 4)


@pytest.fixture(autouse=True)
def free(monkeypatch):
    monkeypatch.delenv(V2_VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"policy": parse_policy("ema")}, "on the host"),
        ({"policy": parse_policy("fixed:ngram-vllm")}, "vLLM's own look-up"),
        ({"policy": parse_policy("fixed:neural:9")}, "more than 8 neural tokens"),
        ({"method": "medusa"}, "medusa"),
        ({"on_cpu": True}, "accelerators"),
        ({"why_v1": "vLLM has chosen it"}, "has chosen it"),
    ],
)
def test_all_else_is_served_on_v1_and_why_is_said(changes, why):
    asked = {
        "policy": LEARNED,
        "method": "eagle3",
        "on_cpu": False,
        **changes,
    }
    for policy in (LEARNED, parse_policy("hybrid:4:16:3")):
        assert runner_of(policy, "eagle3", False) == ("V2", "")
    runner, said = runner_of(**asked)
    assert runner == "V1"
    assert why in said


def test_what_the_environment_says_is_followed_or_refused(monkeypatch):
    monkeypatch.setenv(V2_VARIABLE, "0")
    assert runner_of(LEARNED, "eagle3", False) == ("V1", f"{V2_VARIABLE}=0")
    monkeypatch.setenv(V2_VARIABLE, "1")
    assert runner_of(LEARNED, "eagle3", True) == ("V2", "")
    with pytest.raises(ServingError, match=f"{V2_VARIABLE}=1.*unset"):
        runner_of(LEARNED, "medusa", False)
