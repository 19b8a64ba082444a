"""The static settings that hindsight chooses from: grids that grow until no winner is on an edge.

A grid begins with all combinations of some values. Where a winner has no tried neighbour beyond
one of its values, though there are values beyond that would matter, the next ones are tried, with
all else as in the winner, until every winner has neighbours on both sides in every field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.match import LONGEST_MATCH
from adaspec.policy.spec import FORMS, Field, rule_spec
from adaspec.policy.static import StaticPolicy, StaticRule
from adaspec.replay.player import missing
from adaspec.replay.recording import Recording

Speeds = NDArray[np.float64]

ROUNDS = 40
"""How often a grid grows at most; winners that then still lie on an edge are flagged."""


@dataclass(frozen=True, slots=True)
class Grid:
    """All combinations of the values tried at first for one spec's fields."""

    head: str
    values: tuple[tuple[int, ...], ...]


GRIDS = (
    Grid("none", ()),
    Grid("fixed:ngram", ((3, 5, 8, 12, 16, 32), (1, 2, 3, 5))),
    Grid("fixed:neural", (tuple(range(1, 9)),)),
    Grid("hybrid", ((2, 3, 4, 5, 6, 8, 10), (3, 5, 8, 12, 16, 20, 32), (0, 1, 2, 3, 4))),
    Grid(
        "hybrid-splice",
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
        ((1, 2, 3, 4, 6), (5, 12, 20), (1, 2, 3), (1, 2, 4), (3, 5, 10)),
    ),
    Grid("fixed:neural-until", (tuple(range(2, 9)), tuple(range(10, 100, 10)))),
    Grid(
        "hybrid-until",
        ((2, 4, 6, 10), (5, 12, 20), (2, 3, 5, 8), (20, 40, 60, 80), (1, 2, 4), (3, 5, 10)),
    ),
)

_VALUES = {grid.head: grid.values for grid in GRIDS}
MEMORY_GRIDS = (
    Grid("fixed:memory", _VALUES["fixed:ngram"]),
    Grid("hybrid-memory", _VALUES["hybrid-splice"]),
)
"""Settings that also copy from earlier answers."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One static setting of a grid."""

    grid: Grid
    values: tuple[int, ...]
    rule: StaticRule = field(init=False)

    def __post_init__(self) -> None:
        """Build the rule, which is read often."""
        object.__setattr__(self, "rule", FORMS[self.grid.head].build(*self.values))

    @property
    def spec(self) -> str:
        """The setting as it is named on the command line."""
        return rule_spec(self.grid.head, *self.values)

    def policy(self) -> StaticPolicy:
        """The setting as a policy."""
        return StaticPolicy(self.spec, self.rule)


def grid_of(recording: Recording, grids: Sequence[Grid] = GRIDS) -> list[Setting]:
    """All settings of the grids that the recording can replay, in the order of the grids."""
    settings = (Setting(grid, values) for grid in grids for values in product(*grid.values))
    return [each for each in settings if missing(recording, each.rule.needs) is None]


class Lines:
    """The least and greatest value tried of each field, all other values being the same."""

    def __init__(self, settings: Iterable[Setting]) -> None:
        self._ends: dict[tuple[str, int, tuple[int, ...]], tuple[int, int]] = {}
        self.add(settings)

    def add(self, settings: Iterable[Setting]) -> None:
        """Take note of settings that were tried."""
        for each in settings:
            for at, value in enumerate(each.values):
                line = _line(each, at)
                low, high = self._ends.get(line, (value, value))
                self._ends[line] = min(low, value), max(high, value)

    def open_edges(self, setting: Setting, cap: int) -> Iterator[tuple[str, Setting]]:
        """The fields in which nothing was tried beyond a setting, and what is to be tried next.

        Values beyond matter where they are legal and change what is drafted within the cap.
        """
        form, values = FORMS[setting.grid.head], setting.values
        for at, (item, value) in enumerate(zip(form.fields, values, strict=True)):
            low, high = self._ends[_line(setting, at)]
            tried = setting.grid.values[at]
            beyond = []
            if value == low and value > item.low:
                beyond.append(_below(value, tried, item))
            if value == high and value < item.high:
                beyond.append(_above(value, tried, item))
            for following in beyond:
                there = Setting(setting.grid, (*values[:at], following, *values[at + 1 :]))
                if _effect(there.rule, cap) != _effect(setting.rule, cap):
                    yield f"{item.name}={value}", there

    def edge(self, setting: Setting, cap: int) -> tuple[str, ...]:
        """The fields, with their values, in which nothing was tried beyond a setting."""
        return tuple(dict.fromkeys(name for name, _ in self.open_edges(setting, cap)))


def grow(
    grid: list[Setting],
    run: Callable[[Sequence[Setting]], Speeds],
    winners: Callable[[Sequence[Setting], Speeds], Iterable[int]],
    recording: Recording,
    cap: int,
) -> tuple[list[Setting], Speeds]:
    """All settings that were tried and their speeds by `run`, grown around the `winners`."""
    speeds, lines = run(grid), Lines(grid)
    for _ in range(ROUNDS):
        following = {
            there.spec: there
            for winner in set(winners(grid, speeds))
            for _, there in lines.open_edges(grid[winner], cap)
            if missing(recording, there.rule.needs) is None
        }
        if not following:
            break
        more = [following[spec] for spec in sorted(following)]
        lines.add(more)
        grid, speeds = [*grid, *more], np.concatenate([speeds, run(more)])
    return grid, speeds


def _line(setting: Setting, at: int) -> tuple[str, int, tuple[int, ...]]:
    return setting.grid.head, at, (*setting.values[:at], *setting.values[at + 1 :])


def _below(value: int, tried: Sequence[int], item: Field) -> int:
    """The next smaller value: one that the grid began with, else a quarter less."""
    known = [each for each in tried if each < value]
    return max(known) if known else max(item.low, value - max(1, value // 4))


def _above(value: int, tried: Sequence[int], item: Field) -> int:
    """The next greater value: one that the grid began with, else a quarter more."""
    known = [each for each in tried if each > value]
    return min(known) if known else min(item.high, value + max(1, value // 4))


def _effect(rule: StaticRule, cap: int) -> StaticRule:
    """The rule without what makes no difference: drafts beyond the cap, matches never found."""
    neural_len = min(rule.neural_len, cap)
    return replace(
        rule,
        min_match=min(rule.min_match, LONGEST_MATCH + 1),
        ngram_len=min(rule.ngram_len, cap),
        neural_len=neural_len,
        splice_min_match=min(rule.splice_min_match, LONGEST_MATCH + 1),
        splice_len=min(rule.splice_len, cap - neural_len),
    )
