"""Where a step's time goes: draft, verify, sample, other, by who drafts and for how many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaspec.bench.profile.kinds import PARTS, Kind

KEEP_ALIVE = "keep-alive"
"""Nothing is drafted, and the drafter runs to keep its KV whole."""
COPIED = "ngram + drafter"
"""What is verified was copied, and the drafter ran all the same."""


@dataclass(frozen=True, slots=True)
class Share:
    """Mean seconds per part over the kinds of one source and batch."""

    source: str
    requests: int
    kinds: int
    seconds: dict[str, float]

    @property
    def step_s(self) -> float:
        """All parts together."""
        return sum(self.seconds.values())

    def document(self) -> dict[str, object]:
        """In JSON's own types."""
        return {
            "source": self.source,
            "batch": self.requests,
            "kinds": self.kinds,
            "step_s": self.step_s,
            **{f"{part}_s": value for part, value in self.seconds.items()},
        }


def source_of(kind: Kind) -> str:
    """Who drafts, with a drafter that ran for nothing verified told from none at all."""
    source = kind.plan.source
    return {"none": KEEP_ALIVE, "ngram": COPIED}.get(source, source) if kind.forwards else source


def break_down(kinds: Sequence[Kind]) -> list[Share]:
    """A row per source and batch; a kind without true parts counts nowhere."""
    groups: dict[tuple[str, int], list[Kind]] = defaultdict(list)
    for kind in kinds:
        if kind.parts and not _dropped(kind):
            groups[source_of(kind), kind.cell.requests].append(kind)
    order = ["none", KEEP_ALIVE, "ngram", COPIED, "neural", "splice"]
    return [
        Share(
            source,
            requests,
            len(members),
            {part: float(np.mean([kind.part_s(part) for kind in members])) for part in PARTS},
        )
        for (source, requests), members in sorted(
            groups.items(), key=lambda item: (order.index(item[0][0]), item[0][1])
        )
    ]


def _dropped(kind: Kind) -> bool:
    """Whether the plan drafts what it does not verify: good for the fit, no picture of serving."""
    return kind.plan.forwards > kind.plan.neural_len
