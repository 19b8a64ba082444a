"""The plans of target policies at logged decisions, or a refusal that says what a log lacks."""

from __future__ import annotations

from adaspec.cost.model import CostModel
from adaspec.errors import EvaluationError
from adaspec.evaluate.logged.decisions import plans_of_learned
from adaspec.evaluate.logged.outcomes import Plans, plans_of_rule
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.static import StaticPolicy
from adaspec.replay.logged import MAX_REACH, Log
from adaspec.replay.player import Contender


def plans_of(log: Log, policy: Contender, cost: CostModel, cap: int) -> Plans:
    """What a policy would have proposed at every decision; refuses what a log cannot tell."""
    if isinstance(policy, LearnedPolicy):
        if policy.model.reads_evidence:
            raise _refusal(policy, "it reads drafted tokens and confidences before it settles")
        if policy.memory:
            raise _refusal(policy, "a log does not say which earlier answers were known")
        return plans_of_learned(log, policy, cost, cap)
    if not isinstance(policy, StaticPolicy):
        raise _refusal(policy, "it decides by more than a log holds of a decision")
    rule = policy.rule
    if rule.agree:
        raise _refusal(policy, "it compares drafted tokens, which a log holds of few decisions")
    if rule.memory:
        raise _refusal(policy, "a log does not say which earlier answers were known")
    if rule.neural_len > MAX_REACH:
        raise _refusal(policy, f"drafts of at most {MAX_REACH} neural tokens are judged by a log")
    return plans_of_rule(log, rule, cap)


def _refusal(policy: Contender, why: str) -> EvaluationError:
    return EvaluationError(
        f"policy '{policy.name}' cannot be judged by a logged trace: {why}: record a dense one "
        "(adaspec record)"
    )
