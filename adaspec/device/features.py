"""The features of `predict.features`, for all rows at once, in float32 as on the host."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adaspec.device.lookup import Match
from adaspec.device.tables import DeviceTables
from adaspec.draft.answers import IN_ANSWERS


class Rows(NamedTuple):
    """The facts of `predict.features.RowFacts` about the rows of a batch; all int64 but `holds`."""

    prompt_tokens: Tensor
    position: Tensor
    holds: Tensor
    """Whether each row holds the neural drafter."""
    match: Match
    tail: Tensor
    candidate: Tensor


def observe(rows: Rows, tables: DeviceTables) -> Tensor:
    """(rows, FEATURES) the features before drafting."""
    match = rows.match
    context = (rows.prompt_tokens + rows.position).double()
    own = match.start < IN_ANSWERS
    of_match = (
        match.agree,
        match.seen,
        (context - match.start).log().where(own, -1.0),
        match.available.clamp(max=64),
        (match.start < rows.prompt_tokens).double().where(own, -1.0),
    )
    of_request = (rows.position, context.log(), rows.prompt_tokens)
    last, candidate = rows.tail.unbind(1), rows.candidate
    told = tables.look_up(last[-1], last[-2], last[-3], candidate[:, 0], candidate[:, 1])
    features = (
        match.length[:, None],
        torch.stack(of_match, 1).where((match.length > 0)[:, None], torch.nan),
        torch.stack(of_request, 1),
        told.flatten(1),
    )
    return torch.cat(features, 1).float()


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
        rows.position,
    )
    return torch.cat((torch.stack(facts, 1), tables.look_up_copy(before, copied)), 1).float()
