"""The static rules that were tuned on a policy's training requests: what an operator would run.

A panel's requests each run under the rule that was tuned on the other folds, as each is decided by
the model of the other folds. Where those rules do not agree on holding the neural drafter at all,
who pays its keep-alive is undefined: there is no such row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from adaspec.evaluate.hindsight import Winner
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.spec import parse_policy
from adaspec.policy.static import StaticPolicy
from adaspec.replay.contender import Contender, Player
from adaspec.replay.crossfit import CrossfitPolicy, CrossfitRule

Tuned = TypeVar("Tuned")

STATIC_TUNED = "static:tuned"


def tuned_spec(static_tuned: Mapping[int, Tuned], concurrency: int) -> Tuned | None:
    """The rule tuned at this concurrency, or at the nearest one below."""
    below = [at for at in static_tuned if at <= concurrency]
    return static_tuned[max(below)] if below else None


def tuned_rows(named: Sequence[Contender]) -> dict[str, str]:
    """By policy, what the row of its tuned rule is called; `is_hidden` where there are several."""
    known = [each.name for each in named if _tuned(each)]
    if len(known) == 1:
        return {known[0]: STATIC_TUNED}
    return {name: f"{STATIC_TUNED}({name})" for name in known}


def is_hidden(row: str) -> bool:
    """Whether a report leaves the row out: `static:tuned` could not say whose it is."""
    return row.startswith(f"{STATIC_TUNED}(")


def tuned_winners(
    player: Player, named: Sequence[Contender], concurrency: int
) -> dict[str, Winner]:
    """The tuned rules at a concurrency by the name of their row, those that the tape can replay."""
    rows, found = tuned_rows(named), {}
    for each in named:
        specs = tuned_spec(_tuned(each), concurrency)
        if specs is None:
            continue
        rule = _together(specs, each)
        if rule is not None and player.refusal(rule) is None:
            found[rows[each.name]] = Winner(rule)
    return found


def _tuned(contender: Contender) -> Mapping[int, tuple[str, ...]]:
    """By concurrency, the rule tuned for each of the models that decide."""
    if isinstance(contender, CrossfitPolicy):
        return contender.static_tuned
    if isinstance(contender, LearnedPolicy) and contender.manifest is not None:
        return {at: (spec,) for at, spec in contender.manifest.static_tuned.items()}
    return {}


def _together(specs: tuple[str, ...], contender: Contender) -> Contender | None:
    """One rule, or each request's own; None where some hold the neural drafter and some do not."""
    policies = [parse_policy(spec) for spec in specs]
    if len(set(specs)) == 1:
        return policies[0]
    assert isinstance(contender, CrossfitPolicy)
    rules = tuple(each.rule for each in policies if isinstance(each, StaticPolicy))
    if len(rules) < len(specs) or len({rule.neural_len > 0 for rule in rules}) > 1:
        return None
    return CrossfitRule(" / ".join(specs), rules, contender.policy_of_request)
