"""One step's drafts in an engine: they come a forward at a time, and go back as lists of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaspec.draft import NgramIndex
from adaspec.policy.protocol import Bools, Drafts, Floats, Ints
from adaspec.step.cut import Cut
from adaspec.step.executor import ShownDrafts, Step
from adaspec.trace.schema import CONFIDENCES


class EngineDrafts(ShownDrafts):
    """What an engine's drafter drafts in one step, for every row of the engine's batch."""

    def __init__(self, index: NgramIndex, step: Step, engine_rows: Ints, neural_cap: int) -> None:
        """`engine_rows`: for each row of the step, the row of the engine's batch."""
        shape = (len(engine_rows), neural_cap)
        super().__init__(
            index,
            step,
            np.full(shape, -1, np.int32),
            np.full((*shape, len(CONFIDENCES)), np.nan, np.float32),
        )
        self._engine_rows = engine_rows
        self.count = 0
        """Forwards run for drafting: for recorded rows more than the policy asked for."""

    def take(self, tokens: Ints, confidences: Floats) -> None:
        """Take in what one forward drafted, one token for every row of the engine's batch."""
        holds = self._holds
        self.tokens[holds, self.count] = tokens[self._engine_rows[holds]]
        self.confidences[holds, self.count] = confidences[self._engine_rows[holds]]
        self.count += 1

    def everything(self) -> Drafts:
        """All that was drafted."""
        return self.drafts(self.count)


@dataclass(slots=True)
class EngineStep:
    """A step of those requests in the engine's batch whose prompt is through."""

    requests: list[str]
    engine_rows: Ints
    """Rows of the engine's batch, one for each of ours."""
    step: Step
    drafts: EngineDrafts
    recorded: Bools
    """Rows that are drafted for in full, and proposed nothing."""
    room: Ints | None
    """The most tokens that each row's draft may hold, where a request limits that."""
    wants_forward: bool = False
    """Whether the policy wants another forward."""
    drafter_unable: bool = False
    """Whether forwards were wanted that the drafter cannot run."""


def proposed_tokens(
    index: NgramIndex, step: Step, cut: Cut, drafted: Ints, vocabulary: int
) -> list[list[int]]:
    """The tokens of a cut, row by row, which is cut further before any that the vocabulary lacks.

    Prompts may hold placeholders, which are no tokens.
    """
    copied = index.propose(step.slots, cut.start, cut.ngram_len, drafted, cut.neural_len)
    rows = []
    for row in range(len(step.slots)):
        tokens: list[int] = drafted[row, : cut.neural_len[row]].tolist()
        tokens += copied[row, : cut.ngram_len[row]].tolist()
        sound = _sound(tokens, vocabulary)
        if sound < len(tokens):
            del tokens[sound:]
            cut.neural_len[row] = min(cut.neural_len[row], sound)
            cut.ngram_len[row] = sound - cut.neural_len[row]
        rows.append(tokens)
    return rows


def _sound(tokens: list[int], vocabulary: int) -> int:
    """How many tokens come before the first that is none."""
    for place, token in enumerate(tokens):
        if not 0 <= token < vocabulary:
            return place
    return len(tokens)
