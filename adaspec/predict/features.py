"""The features that networks read, with the same code for training and serving.

There are those of a request before drafting, of a splice, and of a drafted neural token. What is
known of a request is a function of its text: nothing is carried from step to step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.match import IN_RING, Matches
from adaspec.predict.tables import (
    AFTER_LAST,
    FIRST,
    LEVEL_NAMES,
    LEVELS,
    LOG_COUNT,
    MEAN,
    NONE,
    VALUES_PER_LEVEL,
    Tables,
    values_of,
)

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

FEATURES_VERSION = 2
"""Names, order and definitions of features and heads; a model serves its own version alone."""

TAIL = 3
"""The number of last tokens that features and token tables read; a text that is shorter begins
with -1. `kernels.begin` names each of them."""
CANDIDATE = 8
"""The number of the n-gram candidate's tokens that features and agreement read."""


class Known(NamedTuple):
    """What is known of rows before drafting."""

    prompt_tokens: Ints
    position: Ints
    """Output tokens."""
    match: Matches
    tail: Ints
    """The last known tokens as (rows, TAIL), with -1 on the left if there are fewer."""
    candidate: Ints
    """The tokens that the match would copy as (rows, CANDIDATE), with -1 past its end."""


class Shown(NamedTuple):
    """What drafts of the neural drafter show, as (rows, tokens); a token of -1 was not drafted."""

    tokens: Ints
    confidences: Floats
    """(rows, tokens, 3) in the order of `trace.schema.CONFIDENCES`; NaN where not known."""
    match: Matches
    """The match behind each token, of length 0 where there is none."""
    copied: Ints
    """The token that would be copied there first; -1 if it is not known."""


BEFORE_FEATURES = (
    "match_length",
    "match_votes",
    "match_occurrences",
    "match_log_distance",
    "match_available",
    "match_in_prompt",
    "position",
    "log_context_tokens",
    "prompt_tokens",
    *(f"{level}{value}" for level in LEVEL_NAMES for value in ("", "_count", "_depth")),
)
"""The features before drafting, in order.

match_*: the most recent longest match: its length (0: none), how many of its occurrences are
followed by the token that it would copy first, how many count (at most 8), the log of how many
tokens back it is, how many tokens it could copy (at most 64), and whether it begins in the prompt.
A match in the ring counts as one at the prompt's first token. All but the length are NaN without a
match. The rest: the output and prompt tokens known, and the token tables' mean, log count and depth
per key.
"""
(
    MATCH_LENGTH,
    MATCH_VOTES,
    MATCH_OCCURRENCES,
    MATCH_LOG_DISTANCE,
    MATCH_AVAILABLE,
    MATCH_IN_PROMPT,
    POSITION,
    LOG_CONTEXT_TOKENS,
    PROMPT_TOKENS,
    TABLES_AT,
) = range(10)
"""The columns of the first of them, and where those of the token tables begin."""


def before_features(tables: Tables, rows: Known) -> Floats:
    """(rows, features) what networks read before drafting."""
    match, context = rows.match, rows.prompt_tokens + rows.position
    start = np.where(match.start >= IN_RING, 0, match.start)
    x = np.empty((len(context), len(BEFORE_FEATURES)), np.float32)
    x[:, MATCH_VOTES] = match.votes
    x[:, MATCH_OCCURRENCES] = match.occurrences
    x[:, MATCH_LOG_DISTANCE] = np.log(context - start)
    x[:, MATCH_AVAILABLE] = np.minimum(match.available, 64)
    x[:, MATCH_IN_PROMPT] = start < rows.prompt_tokens
    x[match.length == 0, : MATCH_IN_PROMPT + 1] = np.nan
    x[:, MATCH_LENGTH] = match.length
    x[:, POSITION] = rows.position
    x[:, LOG_CONTEXT_TOKENS] = np.log(context)
    x[:, PROMPT_TOKENS] = rows.prompt_tokens
    said = values_of(tables, rows.tail, rows.candidate)
    x[:, TABLES_AT:] = said.reshape(len(x), LEVELS * VALUES_PER_LEVEL)
    return x


EVIDENCE_FEATURES = (
    "depth",
    "expected",
    "logprob",
    "margin",
    "entropy",
    "matches_so_far",
    "matching_tokens",
    "match_length",
    "ngram_expected",
    "survival_so_far",
    "least_logprob",
    "least_margin",
    "splice_match_length",
    "splice_match_votes",
    "splice_match_occurrences",
)
"""The features of the neural token drafted at a depth, in order.

expected: P(the token is accepted, given those before it), as predicted before it was seen;
logprob, margin, entropy: its confidences; matches_so_far: whether it and all before it are the
candidate's; matching_tokens: how many in a row from the first are (both NaN without a match);
ngram_expected: P(the candidate's first token is right), as predicted before this token was seen;
survival_so_far: P(all before it are accepted); least_*: the least log-probability and margin of
those before it, NaN at the first; splice_match_*: the match behind this token, which is as long as
the context's match and the draft together if all of it was seen before.
"""
(
    DEPTH,
    EXPECTED,
    LOGPROB,
    MARGIN,
    ENTROPY,
    MATCHES_SO_FAR,
    EVIDENCE_MATCHING_TOKENS,
    EVIDENCE_MATCH_LENGTH,
    NGRAM_EXPECTED,
    SURVIVAL_SO_FAR,
    LEAST_LOGPROB,
    LEAST_MARGIN,
    EVIDENCE_SPLICE_LENGTH,
    EVIDENCE_SPLICE_VOTES,
    EVIDENCE_SPLICE_OCCURRENCES,
) = range(len(EVIDENCE_FEATURES))
"""Their columns."""


def evidence_features(rows: Known, shown: Shown, expected: NDArray[np.float32]) -> Floats:
    """(rows, tokens, features) what networks read of drafted tokens.

    `expected` is (rows, tokens). What is predicted of the tokens before one is left to be filled
    in: NGRAM_EXPECTED and SURVIVAL_SO_FAR.
    """
    tokens, match = shown.tokens, shown.match
    depths = np.arange(1, tokens.shape[1] + 1)
    matching = np.zeros(tokens.shape, np.bool_)
    compared = min(len(depths), CANDIDATE)
    # Behind the candidate's end both may be -1, and that is no agreement.
    matching[:, :compared] = rows.candidate[:, :compared] == tokens[:, :compared]
    matching &= tokens >= 0
    so_far = np.logical_and.accumulate(matching, axis=1)
    has_match, found = rows.match.length[:, None] > 0, match.length > 0
    x = np.empty((*tokens.shape, len(EVIDENCE_FEATURES)), np.float32)
    x[..., DEPTH] = depths
    x[..., EXPECTED] = expected
    x[..., LOGPROB : ENTROPY + 1] = shown.confidences
    x[..., MATCHES_SO_FAR] = np.where(has_match, so_far, np.nan)
    x[..., EVIDENCE_MATCHING_TOKENS] = np.where(has_match, so_far.cumsum(axis=1), np.nan)
    x[..., EVIDENCE_MATCH_LENGTH] = rows.match.length[:, None]
    x[:, 0, LEAST_LOGPROB : LEAST_MARGIN + 1] = np.nan
    least = np.fmin.accumulate(shown.confidences[:, :-1, :2], axis=1)
    x[:, 1:, LEAST_LOGPROB : LEAST_MARGIN + 1] = least
    x[..., EVIDENCE_SPLICE_LENGTH] = match.length
    x[..., EVIDENCE_SPLICE_VOTES] = np.where(found, match.votes, np.nan)
    x[..., EVIDENCE_SPLICE_OCCURRENCES] = np.where(found, match.occurrences, np.nan)
    return x


SPLICE_FEATURES = (
    "splice_match_length",
    "splice_match_votes",
    "splice_match_occurrences",
    "splice_match_available",
    "neural_tokens",
    "neural_survival",
    "match_length",
    "position",
    "copy_right",
    "copy_right_after",
    "copy_right_after_count",
)
"""The features of a splice, in order. None depends on the match's position, because traces without
drafted tokens could not tell it without using tokens to come. copy_*: the token tables' figures for
the first token to copy, NaN in such traces."""
(
    SPLICE_LENGTH,
    SPLICE_VOTES,
    SPLICE_OCCURRENCES,
    SPLICE_AVAILABLE,
    SPLICE_NEURAL_TOKENS,
    SPLICE_NEURAL_SURVIVAL,
    SPLICE_CONTEXT_MATCH_LENGTH,
    SPLICE_POSITION,
    COPY_RIGHT,
    COPY_RIGHT_AFTER,
    COPY_RIGHT_AFTER_COUNT,
) = range(len(SPLICE_FEATURES))
"""Their columns."""


def splice_features(tables: Tables, rows: Known, shown: Shown, survival: NDArray[Any]) -> Floats:
    """(rows, tokens, features) what networks read of the matches behind drafted tokens.

    `survival` is (rows, tokens) P(the token and those before it are accepted).
    """
    match = shown.match
    x = np.empty((*shown.tokens.shape, len(SPLICE_FEATURES)), np.float32)
    x[..., SPLICE_LENGTH] = match.length
    x[..., SPLICE_VOTES] = match.votes
    x[..., SPLICE_OCCURRENCES] = match.occurrences
    x[..., SPLICE_AVAILABLE] = np.minimum(match.available, 32)
    x[..., SPLICE_NEURAL_TOKENS] = np.arange(1, x.shape[1] + 1)
    x[..., SPLICE_NEURAL_SURVIVAL] = survival
    x[..., SPLICE_CONTEXT_MATCH_LENGTH] = rows.match.length[:, None]
    x[..., SPLICE_POSITION] = rows.position[:, None]
    last, copied = shown.tokens.ravel(), shown.copied.ravel()
    none = np.full(len(last), NONE, np.int32)
    tail, candidate = np.stack((none, none, last), 1), np.stack((copied, none), 1)
    said = values_of(tables, tail, candidate).reshape(*shown.copied.shape, LEVELS, VALUES_PER_LEVEL)
    x[..., COPY_RIGHT] = said[..., FIRST, MEAN]
    x[..., COPY_RIGHT_AFTER] = said[..., AFTER_LAST, MEAN]
    x[..., COPY_RIGHT_AFTER_COUNT] = said[..., AFTER_LAST, LOG_COUNT]
    x[shown.copied < 0, COPY_RIGHT:] = np.nan
    return x
