"""Which of vLLM's model runners serves, and why."""

from __future__ import annotations

import os

from adaspec.errors import ServingError
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Policy
from adaspec.vllm.patching import METHOD, V2_VARIABLE

DRAFTS = ("eagle", "eagle3", "mtp", "draft_model", None)
"""The methods of drafting that are known on V2; None: n-gram look-up alone."""
MOST_SCHEDULED = 16
"""The longest draft on V2 if the operator names none: so many tokens of every request count
against the scheduler's limit of tokens in a step, however few are verified."""


def runner_of(
    mode: str, policy: Policy | None, method: str | None, on_cpu: bool, why_v1: str = ""
) -> tuple[str, str]:
    """V1 or V2, and the reason if it is V1; raises a `ServingError` where V2 is forced in vain.

    `policy` is None where it is not known yet.
    """
    wanted = os.environ.get(V2_VARIABLE, "").strip()
    problem = why_v1 or _problem(mode, policy, method)
    if wanted and not wanted.isdecimal():
        raise ServingError(f"{V2_VARIABLE}={wanted}: vLLM reads a number there: set it to 0 or 1")
    if not wanted or int(wanted) == 0:
        if wanted:
            problem = f"{V2_VARIABLE}={wanted}"
        elif problem is None and on_cpu:
            problem = "vLLM has V2 on accelerators alone"
    elif problem is not None:
        raise ServingError(
            f"method '{METHOD}' does not go with {V2_VARIABLE}={wanted} here: {problem}: unset it"
        )
    return ("V2", "") if problem is None else ("V1", problem)


def _problem(mode: str, policy: Policy | None, method: str | None) -> str | None:
    if mode == "record":
        return "mode 'record'"
    if policy is not None and not isinstance(policy, LearnedPolicy):
        return f"policy '{policy.name}', which decides on the host: only learned ones are on V2"
    if method not in DRAFTS:
        return f"a drafter of method '{method}'"
    return None
