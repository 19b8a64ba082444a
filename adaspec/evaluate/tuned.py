"""The static rules that were tuned on a policy's training requests: what an operator would run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from adaspec.evaluate.hindsight import Winner
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.spec import parse_policy
from adaspec.replay.contender import Contender, Player

STATIC_TUNED = "static:tuned"


def tuned_spec(static_tuned: Mapping[int, str], concurrency: int) -> str | None:
    """The rule tuned at this concurrency, or at the nearest one below."""
    below = [at for at in static_tuned if at <= concurrency]
    return static_tuned[max(below)] if below else None


def tuned_rows(named: Sequence[Contender]) -> dict[str, str]:
    """By policy, what the row of its tuned rule is called; `is_hidden` where there are several."""
    known = [each.name for each in named if isinstance(each, LearnedPolicy) and _tuned(each)]
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
        if not isinstance(each, LearnedPolicy) or each.name not in rows:
            continue
        spec = tuned_spec(_tuned(each), concurrency)
        if spec is not None and player.refusal(parse_policy(spec)) is None:
            found[rows[each.name]] = Winner(parse_policy(spec))
    return found


def _tuned(policy: LearnedPolicy) -> Mapping[int, str]:
    return policy.manifest.static_tuned if policy.manifest is not None else {}
