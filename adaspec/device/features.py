"""The features and the history of `predict.features`, for all rows at once.

Types are the host's: histories are float64, because counts and means are carried on for a whole
request, and features float32. So what remains of a difference comes from the order of sums.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adaspec.device.lookup import Match
from adaspec.device.tables import DeviceTables
from adaspec.draft.answers import IN_ANSWERS
from adaspec.predict.features import (
    CANDIDATE,
    IMAGINED_DRAFTS,
    NEURAL_MEAN_START,
    NEURAL_MEMORY,
    NEURAL_START,
    NGRAM_MEMORY,
    NGRAM_START,
    SPLICE_MEMORY,
    SPLICE_START,
    SURPRISE_MEMORY,
)


class History(NamedTuple):
    """The numbers of `predict.features.HISTORY` in their order, a column of float64 each."""

    hit: Tensor
    neural_hit: Tensor
    neural_mean: Tensor
    copied: Tensor
    goes_on_at: Tensor
    emitted: Tensor
    neural_hits: Tensor
    neural_drafts: Tensor
    neural_surprise: Tensor
    ngram_surprise: Tensor
    whole: Tensor
    copy: Tensor
    splice_hit: Tensor
    neural_expected: Tensor
    ngram_expected: Tensor

    @classmethod
    def of(cls, state: Tensor) -> History:
        """The columns of a (rows, HISTORY) tensor."""
        return cls(*state.unbind(1))


def new_history(device: torch.device) -> Tensor:
    """The history of a request that begins."""
    start = [0.0] * len(History._fields)
    named = {
        "hit": NGRAM_START,
        "neural_hit": NEURAL_START,
        "neural_mean": NEURAL_MEAN_START,
        "goes_on_at": -1.0,
        "whole": float("nan"),
        "splice_hit": SPLICE_START,
    }
    for name, value in named.items():
        start[History._fields.index(name)] = value
    return torch.tensor(start, dtype=torch.float64, device=device)


class Rows(NamedTuple):
    """The facts of `predict.features.RowFacts` about the rows of a batch; all int64 but `holds`."""

    prompt_tokens: Tensor
    position: Tensor
    holds: Tensor
    """Whether each row holds the neural drafter."""
    match: Match
    tail: Tensor
    candidate: Tensor


class Outcome(NamedTuple):
    """What became of the step before, per row."""

    length: Tensor
    """The match that the step was decided on: its length, start and candidate."""
    start: Tensor
    candidate: Tensor
    drafted: Tensor
    """The tokens that were verified."""
    neural_drafted: Tensor
    """How many of them the neural drafter drafted."""
    accepted: Tensor
    emitted: Tensor
    """(rows, CANDIDATE) the first emitted tokens; what lies behind `emitted_tokens` is not read."""
    emitted_tokens: Tensor
    """How many were emitted; 0 where that is not known, and then nothing is remembered."""


def observe(rows: Rows, state: Tensor, tables: DeviceTables) -> tuple[Tensor, Tensor]:
    """(rows, FEATURES) the features before drafting; (rows, HISTORY) with what tables expect."""
    match, past = rows.match, History.of(state)
    context = (rows.prompt_tokens + rows.position).double()
    goes_on = match.start == past.goes_on_at
    hits = past.neural_hits + IMAGINED_DRAFTS * NEURAL_START
    own = match.start < IN_ANSWERS
    of_match = (
        match.agree,
        match.seen,
        (context - match.start).log().where(own, -1.0),
        match.available.clamp(max=64),
        (match.start < rows.prompt_tokens).double().where(own, -1.0),
        goes_on,
        past.copied * goes_on,
    )
    of_request = (
        past.hit,
        past.neural_hit,
        past.neural_mean,
        hits / (past.neural_drafts + IMAGINED_DRAFTS),
        past.neural_surprise,
        past.ngram_surprise,
        past.emitted,
        past.whole,
        past.copy,
        rows.position,
        context.log(),
        rows.prompt_tokens,
    )
    last, candidate = rows.tail.unbind(1), rows.candidate
    told = tables.look_up(last[-1], last[-2], last[-3], candidate[:, 0], candidate[:, 1])
    features = (
        match.length[:, None],
        torch.stack(of_match, 1).where((match.length > 0)[:, None], torch.nan),
        torch.stack(of_request, 1),
        told.flatten(1),
    )
    expected = past._replace(neural_expected=told[:, 2, 0], ngram_expected=told[:, 4, 0])
    return torch.cat(features, 1).float(), torch.stack(expected, 1)


def remember(state: Tensor, outcome: Outcome) -> Tensor:
    """(rows, HISTORY) after a step's outcome; the candidate counts even if it was not drafted."""
    past = History.of(state)
    count = outcome.emitted_tokens
    known, found = count > 0, outcome.length > 0
    steps = torch.arange(CANDIDATE, device=count.device)
    same = (outcome.candidate == outcome.emitted) & (steps < count[:, None])
    right = same.long().cumprod(1).sum(1)
    hit = (right > 0).double()
    copied = found & (right == count.clamp(max=CANDIDATE))
    goes_on = outcome.start == past.goes_on_at

    accepted, drafted, neural = outcome.accepted, outcome.drafted, outcome.neural_drafted
    taken = accepted.minimum(neural)
    drew = neural > 0
    neural_hit = (taken > 0).double()
    # A fully accepted draft is censored, so it counts for the mean only as a lower bound.
    counts = drew & ((taken < neural) | (taken > past.neural_mean))
    spliced = drew & (taken == neural) & (drafted > neural)

    def moved(mean: Tensor, value: Tensor, memory: float, where: Tensor) -> Tensor:
        return (mean + memory * (value - mean)).where(where, mean)

    after = History(
        hit=moved(past.hit, hit, NGRAM_MEMORY, found),
        neural_hit=moved(past.neural_hit, neural_hit, NEURAL_MEMORY, drew),
        neural_mean=moved(past.neural_mean, taken.double(), NEURAL_MEMORY, counts),
        copied=(count + past.copied.where(goes_on, 0.0)).where(copied, 0.0),
        goes_on_at=(outcome.start + count).double().where(copied, -1.0),
        emitted=count.double(),
        neural_hits=past.neural_hits + (drew & (taken > 0)),
        neural_drafts=past.neural_drafts + drew,
        neural_surprise=moved(
            past.neural_surprise, neural_hit - past.neural_expected, SURPRISE_MEMORY, drew
        ),
        ngram_surprise=moved(
            past.ngram_surprise, hit - past.ngram_expected, SURPRISE_MEMORY, found
        ),
        whole=(accepted >= drafted).double().where(drafted > 0, torch.nan),
        copy=((drafted > 0) & (neural == 0)).double(),
        splice_hit=moved(past.splice_hit, (accepted > neural).double(), SPLICE_MEMORY, spliced),
        neural_expected=past.neural_expected,
        ngram_expected=past.ngram_expected,
    )
    return torch.stack(after, 1).where(known[:, None], state)


def observe_evidence(
    depth: int,
    expected: Tensor,
    confidence: Tensor,
    agreed: Tensor,
    match_length: Tensor,
    ngram_expected: Tensor,
    survival: Tensor,
    least: Tensor,
    behind: Match,
) -> Tensor:
    """(rows, EVIDENCE) the features of the tokens drafted at a depth."""
    of_match = torch.stack((agreed >= depth, agreed), 1)
    of_behind = torch.stack((behind.agree, behind.seen), 1)
    features = (
        torch.stack((torch.full_like(expected, depth), expected), 1),
        confidence,
        of_match.double().where((match_length > 0)[:, None], torch.nan),
        torch.stack((match_length, ngram_expected, survival), 1),
        least,
        behind.length[:, None],
        of_behind.double().where((behind.length > 0)[:, None], torch.nan),
    )
    return torch.cat(features, 1).float()


def observe_splice(
    behind: Match,
    tokens: Tensor,
    survival: Tensor,
    rows: Rows,
    past: History,
    tables: DeviceTables,
    before: Tensor,
    copied: Tensor,
) -> Tensor:
    """(rows, SPLICE) the features of a splice behind so many neural tokens, `before` the last."""
    facts = (
        behind.length,
        behind.agree,
        behind.seen,
        behind.available.clamp(max=32),
        tokens,
        survival,
        rows.match.length,
        past.hit,
        past.neural_hit,
        past.splice_hit,
        past.ngram_surprise,
        rows.position,
    )
    return torch.cat((torch.stack(facts, 1), tables.look_up_copy(before, copied)), 1).float()
