"""What passes between the engine and the policy: a step's batch, its drafts, and what is cut."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.draft import Matches, NgramIndex
from adaspec.errors import PolicyFault
from adaspec.policy.protocol import Batch, Bools, Drafts, Floats, Ints, Proposal
from adaspec.trace.schema import CONFIDENCES

LONGEST_LOOK = 1 << 12
"""Most tokens of the known text that a policy may ask for at once."""


class KnownText:
    """The `Context` of a batch: look-ups in the text as far as it is known."""

    def __init__(self, index: NgramIndex, slots: Ints, matches: Matches) -> None:
        self._index, self._slots = index, slots.copy()
        # A policy may write into what it is handed: what is looked up rests on copies of our own.
        self.start, self.available = matches.start.copy(), matches.available.copy()

    def tail(self, count: int) -> Ints:
        """The last known tokens per row."""
        return self._index.tail(self._slots, _counted(count))

    def candidate(self, count: int) -> Ints:
        """What the most recent match would copy, padded with -1 to `count`."""
        return self._index.copies(self._slots, self.start, _counted(count))

    def vllm_match(self, min_match: int, max_match: int) -> tuple[Ints, Ints]:
        """Where vLLM's own look-up copies from, and the match's length."""
        return self._index.match_vllm(self._slots, min_match, max_match)

    def token_at(self, places: Ints) -> Ints:
        """The known token at a place of every row, -1 where there is none."""
        return self._index.copies(self._slots, places, 1)[:, 0]


class BehindDrafts:
    """Look-ups behind drafted tokens, answered once per lengths."""

    def __init__(self, index: NgramIndex, slots: Ints, tokens: Ints, holds: Bools) -> None:
        self._index, self._slots, self._tokens, self._holds = index, slots, tokens, holds
        self._last: tuple[Ints, Matches] | None = None

    def __call__(self, neural_len: Ints) -> Matches:
        """The match behind each row's first `neural_len` drafted tokens; none where that is 0."""
        lengths = whole(neural_len, len(self._holds), "a look-up behind")
        if (lengths < 0).any() or (lengths > self._tokens.shape[1] * self._holds).any():
            raise PolicyFault(
                f"a look-up behind {lengths.tolist()} neural tokens was asked; "
                f"{self._tokens.shape[1]} are drafted"
            )
        if self._last is not None and np.array_equal(lengths, self._last[0]):
            return self._last[1]
        found = self._index.lookup_behind(self._slots, self._tokens, lengths)
        nothing = lengths == 0
        for column in (found.length, found.agree, found.seen, found.available):
            column[nothing] = 0
        found.start[nothing] = found.first[nothing] = -1
        self._last = lengths, found
        return found


@dataclass(slots=True)
class Decision:
    """One step on its way from the known text to a proposal."""

    requests: list[str]
    rows: Ints
    """Rows of the engine's batch, one for each of ours."""
    batch: Batch
    text: KnownText
    index: NgramIndex
    tokens: Ints
    """(rows, cap) drafted so far, -1 where not."""
    confidences: Floats
    room: Ints | None = None
    """The most tokens that each row's draft may hold, where a request limits that."""
    planned: int = 0
    """Forwards that the policy asked for."""
    count: int = 0
    """Forwards run for drafting."""
    shown: int = 0
    """Of their tokens, those that the policy asked for: a recording may draft further."""
    ended: bool = False
    """The policy wants no more of them."""

    def take(self, tokens: Ints, confidences: Floats) -> None:
        """Take in one drafted token for every row of the engine's batch."""
        holds = self.batch.holds_neural
        self.tokens[holds, self.count] = tokens[self.rows[holds]]
        self.confidences[holds, self.count] = confidences[self.rows[holds]]
        self.count += 1

    def drafts(self) -> Drafts:
        """What the policy is shown of them."""
        return self._first(self.shown)

    def everything(self) -> Drafts:
        """All that was drafted."""
        return self._first(self.count)

    def _first(self, count: int) -> Drafts:
        # Compiled policies are compiled for contiguous arrays: another layout is another compile.
        tokens = np.ascontiguousarray(self.tokens[:, :count])
        confidences = np.ascontiguousarray(self.confidences[:, :count])
        batch = self.batch
        behind = BehindDrafts(
            self.index, batch.slots.copy(), tokens.copy(), batch.holds_neural.copy()
        )
        return Drafts(count, tokens, confidences, behind)


def decision_of(
    index: NgramIndex,
    requests: list[str],
    rows: Ints,
    slots: Ints,
    prompt_tokens: Ints,
    position: Ints,
    holds_neural: Bools,
    neural_cap: int,
) -> Decision:
    """A fresh decision on these rows."""
    matches = index.lookup(slots)
    text = KnownText(index, slots, matches)
    batch = Batch(slots, prompt_tokens, position, holds_neural, matches, text)
    return Decision(
        requests=requests,
        rows=rows,
        batch=batch,
        text=text,
        index=index,
        tokens=np.full((len(rows), neural_cap), -1, np.int32),
        confidences=np.full((len(rows), neural_cap, len(CONFIDENCES)), np.nan, np.float32),
    )


def planned_forwards(planned: Any, neural_cap: int, held: bool) -> int:
    """The forwards that a policy plans, if it may; a `PolicyFault` otherwise."""
    try:
        most = operator.index(planned)
    except TypeError:
        raise PolicyFault(f"plans {planned!r:.60} neural tokens, not a whole number") from None
    if not 0 <= most <= neural_cap:
        raise PolicyFault(f"plans {most} neural tokens; 0 to {neural_cap} are possible")
    if most > 0 and not held:
        raise PolicyFault("drafts where no request holds the neural drafter")
    return int(most)


@dataclass(frozen=True, slots=True)
class Cut:
    """A proposal as it can be: lengths per row, and the tokens themselves."""

    neural_len: Ints
    ngram_len: Ints
    tokens: list[list[int]]


def cut(
    proposal: object, decision: Decision, cap: int, vocabulary: int, lenient: bool = False
) -> Cut:
    """What a proposal comes to; a `PolicyFault` where it asks for what was never drafted.

    `lenient` cuts neural lengths instead: where we, not the policy, ended drafting early.
    """
    rows = len(decision.rows)
    if not isinstance(proposal, Proposal):
        raise PolicyFault(f"settles on {proposal!r:.60}, not on a Proposal")
    neural_len = whole(proposal.neural_len, rows, "neural_len")
    ngram_len = whole(proposal.ngram_len, rows, "ngram_len")
    drafted = np.where(decision.batch.holds_neural, decision.shown, 0).astype(np.int32)
    if lenient:
        ngram_len[neural_len > drafted] = 0
        neural_len = np.minimum(neural_len, drafted)
    if (neural_len < 0).any() or (ngram_len < 0).any() or (neural_len > drafted).any():
        raise PolicyFault(
            f"proposes neural lengths {neural_len.tolist()} and n-gram lengths "
            f"{ngram_len.tolist()}; {decision.shown} tokens were drafted"
        )
    start, available = _sources(proposal, decision, neural_len, ngram_len)
    most = cap if decision.room is None else np.clip(decision.room, 0, cap)
    room = np.maximum(0, most - neural_len)
    ngram_len = np.minimum(np.minimum(ngram_len, available), room).astype(np.int32)
    neural_len = np.minimum(neural_len, most).astype(np.int32)
    copied = decision.index.propose(
        decision.batch.slots, start, ngram_len, decision.tokens, neural_len
    )
    tokens = []
    for row in range(rows):
        found = decision.tokens[row, : neural_len[row]].tolist()
        found += copied[row, : ngram_len[row]].tolist()
        sound = _sound(found, vocabulary)
        if sound < len(found):
            del found[sound:]
            neural_len[row] = min(neural_len[row], sound)
            ngram_len[row] = sound - neural_len[row]
        tokens.append(found)
    return Cut(neural_len, ngram_len, tokens)


def _sources(
    proposal: Proposal, decision: Decision, neural_len: Ints, ngram_len: Ints
) -> tuple[Ints, Ints]:
    """Where every row copies from, and how much there is to copy."""
    batch = decision.batch
    start, available = decision.text.start, decision.text.available
    if proposal.ngram_start is not None:
        context = (batch.prompt_tokens + batch.position).astype(np.int32)
        named = whole(proposal.ngram_start, len(batch), "ngram_start")
        elsewhere = named >= 0
        if (named >= context).any() or (named < -1).any():
            raise PolicyFault(f"copies from {named.tolist()}, beyond the known text")
        if (elsewhere & (neural_len > 0)).any():
            raise PolicyFault("names where to copy from behind neural tokens")
        start = np.where(elsewhere, named, start).astype(np.int32)
        available = np.where(elsewhere, context - named, available).astype(np.int32)
    spliced = (neural_len > 0) & (ngram_len > 0)
    if spliced.any():
        found = decision.drafts().behind(neural_len)
        start = np.where(neural_len > 0, found.start, start).astype(np.int32)
        available = np.where(neural_len > 0, found.available, available).astype(np.int32)
    return start, available


def _sound(tokens: list[int], vocabulary: int) -> int:
    """How many tokens come before the first that is none: prompts may hold placeholders."""
    for at, token in enumerate(tokens):
        if not 0 <= token < vocabulary:
            return at
    return len(tokens)


def whole(values: object, rows: int, what: str) -> Ints:
    """One whole number per row, as our own array; a `PolicyFault` otherwise."""
    found: NDArray[np.int64] = np.array(values)
    if found.shape != (rows,) or found.dtype.kind not in "iu":
        raise PolicyFault(
            f"{what} of shape {found.shape} and type {found.dtype}: one whole number for each of "
            f"{rows} rows is needed"
        )
    return found.clip(-(1 << 30), 1 << 30).astype(np.int32)


def _counted(count: int) -> int:
    try:
        asked = operator.index(count)
    except TypeError:
        asked = -1
    if not 0 <= asked <= LONGEST_LOOK:
        raise PolicyFault(f"{count!r:.60} tokens of the known text were asked")
    return asked
