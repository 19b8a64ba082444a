"""The features that networks read, with the same code for training and serving.

There are those of a request before drafting, of a splice, and of a drafted neural token. What is
known of a request is a function of its text: nothing is carried from step to step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.match import IN_RING
from adaspec.jit import compiled
from adaspec.predict.tables import (
    LEVEL_NAMES,
    LEVELS,
    VALUES_PER_LEVEL,
    Tables,
    fill_copy_values,
    fill_values,
)

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

FEATURES_VERSION = 2
"""Names, order and definitions of features and heads; a model serves its own version alone."""

TAIL = 3
"""The number of last tokens that features read."""
CANDIDATE = 8
"""The number of the n-gram candidate's tokens that features and agreement read."""

PRE_DRAFT_FEATURES = (
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

MATCH_LENGTH, MATCH_VOTES, MATCH_OCCURRENCES, MATCH_LOG_DISTANCE = range(4)
MATCH_AVAILABLE, MATCH_IN_PROMPT, POSITION, LOG_CONTEXT_TOKENS, PROMPT_TOKENS = range(4, 9)
TABLES_AT = 9
"""The columns of the first of them, and where those of the token tables begin."""
FEATURES = len(PRE_DRAFT_FEATURES)


class RowFacts(NamedTuple):
    """The facts about the running rows at a step."""

    slots: Ints
    prompt_tokens: Ints
    position: Ints
    holds_neural: NDArray[np.bool_]
    length: Ints
    start: Ints
    votes: Ints
    occurrences: Ints
    available: Ints
    tail: Ints
    """The last known tokens as (rows, TAIL), with -1 on the left if there are fewer."""
    candidate: Ints
    """The tokens that the match would copy as (rows, CANDIDATE), with -1 past its end."""


class SpliceMatches(NamedTuple):
    """The matches behind neural drafts, in the order of `Matches`; length 0 if there is none."""

    length: Ints
    votes: Ints
    occurrences: Ints
    available: Ints
    copied: Ints
    """The token that would be copied first; -1 if it is not known."""


@compiled
def fill_features(rows: RowFacts, tables: Tables, keys: NDArray[np.uint64], out: Floats) -> None:
    """Fill `out` with the features of all rows."""
    for row in range(rows.slots.shape[0]):
        x = out[row]
        context = rows.prompt_tokens[row] + rows.position[row]
        if rows.length[row] > 0:
            x[MATCH_LENGTH] = rows.length[row]
            x[MATCH_VOTES] = rows.votes[row]
            x[MATCH_OCCURRENCES] = rows.occurrences[row]
            start = 0 if rows.start[row] >= IN_RING else rows.start[row]
            x[MATCH_LOG_DISTANCE] = np.log(context - start + 0.0)
            x[MATCH_IN_PROMPT] = start < rows.prompt_tokens[row]
            x[MATCH_AVAILABLE] = min(rows.available[row], 64)
        else:
            x[: MATCH_IN_PROMPT + 1] = np.nan
            x[MATCH_LENGTH] = 0.0
        x[POSITION] = rows.position[row]
        x[LOG_CONTEXT_TOKENS] = np.log(context + 0.0)
        x[PROMPT_TOKENS] = rows.prompt_tokens[row]
        fill_values(
            tables,
            rows.tail[row, TAIL - 1],
            rows.tail[row, TAIL - 2],
            rows.tail[row, TAIL - 3],
            rows.candidate[row, 0],
            rows.candidate[row, 1],
            keys,
            x[TABLES_AT : TABLES_AT + VALUES_PER_LEVEL * LEVELS],
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

DEPTH, EXPECTED, LOGPROB, MARGIN, ENTROPY = range(5)
MATCHES_SO_FAR, EVIDENCE_MATCHING_TOKENS, EVIDENCE_MATCH_LENGTH, NGRAM_EXPECTED, SURVIVAL_SO_FAR = (
    range(5, 10)
)
LEAST_LOGPROB, LEAST_MARGIN = range(10, 12)
EVIDENCE_SPLICE_LENGTH, EVIDENCE_SPLICE_VOTES, EVIDENCE_SPLICE_OCCURRENCES = range(12, 15)
"""Their columns."""


@compiled
def fill_evidence(
    depth: int,
    expected: float,
    confidence: Floats,
    matching_tokens: int,
    match_length: float,
    ngram_expected: float,
    survival: float,
    least: Floats,
    splice_match_length: int,
    splice_match_votes: int,
    splice_match_occurrences: int,
    out: Floats,
) -> None:
    """Fill one row of features; the first `matching_tokens` drafted tokens are the candidate's.

    `least` has the least log-probability and margin of the earlier tokens, NaN at the first.
    """
    out[DEPTH] = depth
    out[EXPECTED] = expected
    out[LOGPROB : ENTROPY + 1] = confidence
    out[MATCHES_SO_FAR] = matching_tokens >= depth if match_length > 0 else np.nan
    out[EVIDENCE_MATCHING_TOKENS] = matching_tokens if match_length > 0 else np.nan
    out[EVIDENCE_MATCH_LENGTH] = match_length
    out[NGRAM_EXPECTED] = ngram_expected
    out[SURVIVAL_SO_FAR] = survival
    out[LEAST_LOGPROB : LEAST_MARGIN + 1] = least
    out[EVIDENCE_SPLICE_LENGTH] = splice_match_length
    out[EVIDENCE_SPLICE_VOTES] = splice_match_votes if splice_match_length > 0 else np.nan
    out[EVIDENCE_SPLICE_OCCURRENCES] = (
        splice_match_occurrences if splice_match_length > 0 else np.nan
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
SPLICE_LENGTH, SPLICE_VOTES, SPLICE_OCCURRENCES, SPLICE_AVAILABLE = range(4)
SPLICE_NEURAL_TOKENS, SPLICE_NEURAL_SURVIVAL, SPLICE_CONTEXT_MATCH_LENGTH, SPLICE_POSITION = range(
    4, 8
)
COPY_RIGHT, COPY_RIGHT_AFTER, COPY_RIGHT_AFTER_COUNT = range(8, 11)
"""Their columns."""


@compiled
def fill_splice(
    length: int,
    votes: int,
    occurrences: int,
    available: int,
    tokens: int,
    survival: float,
    match_length: float,
    position: int,
    tables: Tables,
    before: int,
    copied: int,
    keys: NDArray[np.uint64],
    out: Floats,
) -> None:
    """Fill one row of features; `before` is the last neural token."""
    out[SPLICE_LENGTH] = length
    out[SPLICE_VOTES] = votes
    out[SPLICE_OCCURRENCES] = occurrences
    out[SPLICE_AVAILABLE] = min(available, 32)
    out[SPLICE_NEURAL_TOKENS] = tokens
    out[SPLICE_NEURAL_SURVIVAL] = survival
    out[SPLICE_CONTEXT_MATCH_LENGTH] = match_length
    out[SPLICE_POSITION] = position
    fill_copy_values(tables, before, copied, keys, out[COPY_RIGHT:])
