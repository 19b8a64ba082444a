"""Who runs at a load: every method at its best setting there, and on the mix its runner-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from adaspec.bench.engine import entrants
from adaspec.bench.engine.entrants import Drafter, Entrant
from adaspec.bench.engine.settings import Settings


def line_up(
    methods: Sequence[str],
    absent: Mapping[str, str],
    settings: Settings,
    concurrency: int,
    drafter: Drafter | None,
    policies: Sequence[str | None],
    cost: str | None,
) -> list[Entrant]:
    """All entrants of a load; no speculation is always among them, and first."""
    found: list[Entrant] = []
    for method in (entrants.NONE, *(name for name in methods if name != entrants.NONE)):
        if method in absent:
            continue
        if method == entrants.SUFFIX:
            found += entrants.suffix_entrants()
        elif method == entrants.ADASPEC:
            found += [
                entrants.adaspec_entrant(policy, drafter, cost, at > 0)
                for at, policy in enumerate(policies)
            ]
        else:
            found += [
                entrants.entrant_of(method, spec, drafter, at > 0)
                for at, spec in enumerate(settings.ranked(method, concurrency))
            ]
    return found
