"""Which model runner serves, and why, is said before anything starts."""

import pytest

from adaspec.errors import ServingError
from adaspec.vllm.patching import V2_VARIABLE
from adaspec.vllm.v2.support import runner_of


@pytest.fixture(autouse=True)
def free(monkeypatch):
    monkeypatch.delenv(V2_VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": "medusa"}, "medusa"),
        ({"on_cpu": True}, "accelerators"),
        ({"why_v1": "vLLM has chosen it"}, "has chosen it"),
    ],
)
def test_all_else_is_served_on_v1_and_why_is_said(changes, why):
    assert runner_of("eagle3", False) == ("V2", "")
    runner, said = runner_of(**{"method": "eagle3", "on_cpu": False, **changes})
    assert runner == "V1"
    assert why in said


def test_what_the_environment_says_is_followed_or_refused(monkeypatch):
    monkeypatch.setenv(V2_VARIABLE, "0")
    assert runner_of("eagle3", False) == ("V1", f"{V2_VARIABLE}=0")
    monkeypatch.setenv(V2_VARIABLE, "1")
    assert runner_of("eagle3", True) == ("V2", "")
    with pytest.raises(ServingError, match=f"{V2_VARIABLE}=1.*unset"):
        runner_of("medusa", False)
