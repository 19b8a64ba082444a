"""The static settings from which the best in hindsight is chosen.

With fewer settings `static:best` would be a weaker opponent.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from adaspec.policy.spec import FORMS, rule_spec
from adaspec.policy.static import StaticPolicy, StaticRule
from adaspec.replay.recording import Recording

FIXED, HYBRID, SPLICE, NONE = "fixed", "hybrid", "splice", "none"


@dataclass(frozen=True, slots=True)
class Grid:
    """All combinations of the values tried for one spec's fields."""

    head: str
    family: str
    values: tuple[tuple[int, ...], ...]


GRIDS = (
    Grid("none", NONE, ()),
    Grid("fixed:ngram", FIXED, ((3, 5, 8, 12, 16, 32), (1, 2, 3, 5))),
    Grid("fixed:neural", FIXED, (tuple(range(1, 9)),)),
    Grid("hybrid", HYBRID, ((2, 3, 4, 5, 6, 8, 10), (3, 5, 8, 12, 16, 20, 32), (0, 1, 2, 3, 4))),
    Grid(
        "hybrid-splice",
        SPLICE,
        (
            (2, 3, 4, 5, 6, 8, 10, 14, 32),
            (5, 8, 12, 20, 48),
            (1, 2, 3, 4),
            (1, 2, 3, 4, 6, 10),
            (1, 2, 3, 5, 10, 15),
        ),
    ),
    Grid(
        "hybrid-agree",
        SPLICE,
        ((1, 2, 3, 4, 6), (5, 12, 20), (1, 2, 3), (1, 2, 4), (3, 5, 10)),
    ),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One static setting of the grids."""

    spec: str
    family: str
    rule: StaticRule
    edge: tuple[str, ...]
    """The fields whose value is the first or last of its grid, though values beyond are legal."""

    def policy(self) -> StaticPolicy:
        """The setting as a policy."""
        return StaticPolicy(self.spec, self.rule)


def settings(recording: Recording) -> list[Setting]:
    """All settings that the recording can replay, in the order of the grids."""
    replayable = []
    for grid in GRIDS:
        form = FORMS[grid.head]
        for values in product(*grid.values):
            rule = form.build(*values)
            if rule.neural_len > recording.neural_cap or (
                rule.needs.tokens and not recording.shows_tokens
            ):
                continue
            replayable.append(
                Setting(rule_spec(grid.head, *values), grid.family, rule, _edge(grid, values))
            )
    return replayable


def _edge(grid: Grid, values: tuple[int, ...]) -> tuple[str, ...]:
    edge = []
    for field, value, tried in zip(FORMS[grid.head].fields, values, grid.values, strict=True):
        above = value == tried[-1] and value < field.high
        below = value == tried[0] and value > field.low
        if above or below:
            edge.append(f"{field.name}={value}")
    return tuple(edge)
