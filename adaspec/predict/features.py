"""The features that networks read, with the same code for training and serving.

There are those of a request before drafting, of a splice, and of a drafted neural token. What is
known of a request is a function of its text: nothing is carried from step to step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.matches import IN_RING, Matches
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
with -1. `kernels.prediction` names each of them."""
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


def before_features(tables: Tables, rows: Known) -> Floats:
    """(rows, features) what networks read before drafting."""
    match, context = rows.match, rows.prompt_tokens + rows.position
    start = np.where(match.start >= IN_RING, 0, match.start)
    found = match.length > 0
    said = values_of(tables, rows.tail, rows.candidate)
    return _side_by_side(
        match.length,
        np.where(found, match.votes, np.nan),
        np.where(found, match.occurrences, np.nan),
        np.where(found, np.log(context - start), np.nan),
        np.where(found, np.minimum(match.available, 64), np.nan),
        np.where(found, start < rows.prompt_tokens, np.nan),
        rows.position,
        np.log(context),
        rows.prompt_tokens,
        *said.reshape(len(context), LEVELS * VALUES_PER_LEVEL).T,
    )


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
NGRAM_EXPECTED = EVIDENCE_FEATURES.index("ngram_expected")
SURVIVAL_SO_FAR = EVIDENCE_FEATURES.index("survival_so_far")
"""The columns of what is predicted of the tokens before one."""


def evidence_features(rows: Known, shown: Shown, expected: NDArray[np.float32]) -> Floats:
    """(rows, tokens, features) what networks read of drafted tokens.

    `expected` is (rows, tokens). NGRAM_EXPECTED and SURVIVAL_SO_FAR are left to be filled in.
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
    least = np.full((*tokens.shape, 2), np.nan, np.float32)
    least[:, 1:] = np.fmin.accumulate(shown.confidences[:, :-1, :2], axis=1)
    return _side_by_side(
        np.broadcast_to(depths, tokens.shape),
        expected,
        *np.moveaxis(shown.confidences, -1, 0),
        np.where(has_match, so_far, np.nan),
        np.where(has_match, so_far.cumsum(axis=1), np.nan),
        rows.match.length[:, None],
        0.0,
        0.0,
        *np.moveaxis(least, -1, 0),
        match.length,
        np.where(found, match.votes, np.nan),
        np.where(found, match.occurrences, np.nan),
    )


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


def splice_features(tables: Tables, rows: Known, shown: Shown, survival: NDArray[Any]) -> Floats:
    """(rows, tokens, features) what networks read of the matches behind drafted tokens.

    `survival` is (rows, tokens) P(the token and those before it are accepted).
    """
    match, shape = shown.match, shown.tokens.shape
    last, copied = shown.tokens.ravel(), shown.copied.ravel()
    none = np.full(len(last), NONE, np.int32)
    tail, candidate = np.stack((none, none, last), 1), np.stack((copied, none), 1)
    said = values_of(tables, tail, candidate).reshape(*shape, LEVELS, VALUES_PER_LEVEL)
    said[shown.copied < 0] = np.nan
    return _side_by_side(
        match.length,
        match.votes,
        match.occurrences,
        np.minimum(match.available, 32),
        np.broadcast_to(np.arange(1, shape[1] + 1), shape),
        survival,
        rows.match.length[:, None],
        rows.position[:, None],
        said[..., FIRST, MEAN],
        said[..., AFTER_LAST, MEAN],
        said[..., AFTER_LAST, LOG_COUNT],
    )


def _side_by_side(first: NDArray[Any], *others: Any) -> Floats:
    """(.., features) the features in order; they are of the shape of the first one."""
    x = np.empty((*first.shape, 1 + len(others)), np.float32)
    for column, values in enumerate((first, *others)):
        x[..., column] = values
    return x
