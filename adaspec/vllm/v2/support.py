"""Which of vLLM's model runners serves, and why."""

from __future__ import annotations

import os

from adaspec.errors import ServingError
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.memory import LONGEST_NEURAL, LONGEST_NGRAM, LONGEST_SPLICE
from adaspec.policy.protocol import Policy
from adaspec.policy.static import StaticPolicy, StaticRule
from adaspec.vllm.patching import METHOD, V2_VARIABLE

DRAFTS = ("eagle", "eagle3", "mtp", "draft_model", None)
"""The methods of drafting that are known on V2; None: n-gram look-up alone."""


def runner_of(
    policy: Policy | None, method: str | None, on_cpu: bool, why_v1: str = ""
) -> tuple[str, str]:
    """V1 or V2, and the reason if it is V1; raises a `ServingError` where V2 is forced in vain.

    `policy` is None where it is not known yet.
    """
    wanted = os.environ.get(V2_VARIABLE, "").strip()
    problem = why_v1 or _problem(policy, method)
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


def _problem(policy: Policy | None, method: str | None) -> str | None:
    if isinstance(policy, StaticPolicy):
        problem = rule_problem(policy.rule)
        if problem is not None:
            return f"policy '{policy.name}': {problem}"
    elif policy is not None and not isinstance(policy, LearnedPolicy):
        return f"policy '{policy.name}', which decides on the host"
    if method not in DRAFTS:
        return f"a drafter of method '{method}'"
    return None


def rule_problem(rule: StaticRule) -> str | None:
    """Why a static rule cannot be served on V2, or None."""
    if rule.vllm_match is not None:
        return "vLLM's own look-up"
    for name, asked, most in (
        ("neural", rule.neural_len, LONGEST_NEURAL),
        ("copied", rule.ngram_len, LONGEST_NGRAM),
        ("spliced", rule.splice_len, LONGEST_SPLICE),
    ):
        if asked > most:
            return f"drafts of more than {most} {name} tokens"
    return None
