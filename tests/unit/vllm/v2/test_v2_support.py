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
        ({"mode": "record"}, "record"),
        ({"policy": parse_policy("hybrid:4:16:0")}, "on the host"),
        ({"method": "medusa"}, "medusa"),
        ({"on_cpu": True}, "accelerators"),
        ({"why_v1": "LoRA adapters"}, "LoRA"),
    ],
)
def test_all_else_is_served_on_v1_and_why_is_said(changes, why):
    asked = {
        "mode": "serve",
        "policy": LEARNED,
        "method": "eagle3",
        "on_cpu": False,
        **changes,
    }
    assert runner_of("serve", LEARNED, "eagle3", False) == ("V2", "")
    runner, said = runner_of(**asked)
    assert runner == "V1"
    assert why in said


def test_what_the_environment_says_is_followed_or_refused(monkeypatch):
    monkeypatch.setenv(V2_VARIABLE, "0")
    assert runner_of("serve", LEARNED, "eagle3", False) == ("V1", f"{V2_VARIABLE}=0")
    monkeypatch.setenv(V2_VARIABLE, "1")
    assert runner_of("serve", LEARNED, "eagle3", True) == ("V2", "")
    with pytest.raises(ServingError, match=f"{V2_VARIABLE}=1.*unset"):
        runner_of("record", LEARNED, "eagle3", False)
