"""The features of a request before drafting, with the same code for training and serving.

All features follow from emitted tokens and from the outcomes of earlier steps. `remember` carries a
request's history from step to step.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.answers import IN_ANSWERS
from adaspec.jit import compiled
from adaspec.predict import tables as token_tables
from adaspec.predict.tables import LEVELS, TOLD, Tables, look_up

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

TAIL = 3
"""The number of last tokens that features read."""
CANDIDATE = 8
"""The number of the n-gram candidate's tokens that features and agreement read."""

BEFORE = (
    "match_length",
    "match_agree",
    "match_seen",
    "match_log_distance",
    "match_available",
    "match_in_prompt",
    "match_goes_on",
    "copied_tokens",
    "ngram_hit_rate",
    "neural_hit_rate",
    "neural_accepted_mean",
    "neural_share",
    "neural_surprise",
    "ngram_surprise",
    "emitted_last",
    "whole_last",
    "copied_last",
    "position",
    "log_context_tokens",
    "prompt_tokens",
    "neural_after_1",
    "neural_after_1_count",
    "neural_after_1_depth",
    "neural_after_2",
    "neural_after_2_count",
    "neural_after_2_depth",
    "neural_after_3",
    "neural_after_3_count",
    "neural_after_3_depth",
    "ngram_first",
    "ngram_first_count",
    "ngram_first_depth",
    "ngram_behind_last",
    "ngram_behind_last_count",
    "ngram_behind_last_depth",
    "ngram_first_two",
    "ngram_first_two_count",
    "ngram_first_two_depth",
    "neural_at_candidate",
    "neural_at_candidate_count",
    "neural_at_candidate_depth",
)
"""The features before drafting, in order.

match_*: the most recent longest match: its length (0: none), how many matches agree with it, how
many were seen, the log of how many tokens back it is, how many tokens it could copy (at most 64),
whether it begins in the prompt, and whether it is where the last fully right candidate ended. Of a
match in another request's answer, the log and whether it begins in the prompt are -1.
copied_tokens: how many tokens that copy has given in a row, 0 if the match does not go on. All but
the length are NaN without a match.
ngram_hit_rate: the running mean, over steps with a match, of whether its first token was right.
neural_hit_rate: the same for verified neural drafts. neural_accepted_mean: the running mean of
their accepted tokens; a fully accepted draft counts only if it raises the mean. neural_share: the
share of this request's neural drafts with a right first token, shrunk towards the usual share.
*_surprise: the running mean of the outcome minus the token tables' prediction, which shows how this
request differs from others.
emitted_last: the tokens that the last step emitted, 0 before the first. whole_last: whether its
draft was fully accepted, NaN without one. copied_last: whether that draft was a copy. The rest: the
output and prompt tokens known, and the token tables' mean, log count and depth per key.
"""

TABLES_AT = BEFORE.index("neural_after_1")
_NEURAL_TABLE, _NGRAM_TABLE = BEFORE.index("neural_after_3"), BEFORE.index("ngram_behind_last")
FEATURES = len(BEFORE)

(
    HIT,
    NEURAL_HIT,
    _NEURAL_MEAN,
    _COPIED,
    _GOES_ON_AT,
    _EMITTED,
    _NEURAL_HITS,
    _NEURAL_DRAFTS,
    _NEURAL_SURPRISE,
    NGRAM_SURPRISE,
    _WHOLE,
    _COPY,
    SPLICE_HIT,
    _NEURAL_EXPECTED,
    _NGRAM_EXPECTED,
) = range(15)
HISTORY = 15
"""The numbers of a slot's history: hit rates, the mean accepted, tokens copied in a row, where the
copy would go on (-1: nowhere), tokens emitted last, counts, surprises, the last draft's outcome,
and the tables' predictions at this step."""

NGRAM_MEMORY = 0.15
"""The weight of the newest step in a running rate."""
NEURAL_MEMORY = 0.15
NEURAL_START, NEURAL_MEAN_START, NGRAM_START, SPLICE_START = 0.6, 1.3, 0.5, 0.3
SURPRISE_MEMORY, SPLICE_MEMORY = 0.08, 0.15
IMAGINED_DRAFTS = 5.0
"""The number of imaginary drafts per request with the usual outcome, to shrink its share."""


class RowFacts(NamedTuple):
    """The facts about the running rows at a step."""

    slots: Ints
    prompt_tokens: Ints
    position: Ints
    holds_neural: NDArray[np.bool_]
    length: Ints
    start: Ints
    agree: Ints
    seen: Ints
    available: Ints
    tail: Ints
    """The last known tokens as (rows, TAIL), with -1 on the left if there are fewer."""
    candidate: Ints
    """The tokens that the match would copy as (rows, CANDIDATE), with -1 past its end."""


@compiled
def forget(history: NDArray[np.float64], slot: int) -> None:
    """Reset the history of a slot, because a new request begins in it."""
    history[slot, HIT] = NGRAM_START
    history[slot, NEURAL_HIT] = NEURAL_START
    history[slot, _NEURAL_MEAN] = NEURAL_MEAN_START
    history[slot, _COPIED] = 0.0
    history[slot, _GOES_ON_AT] = -1.0
    history[slot, _EMITTED] = 0.0
    history[slot, _NEURAL_HITS] = history[slot, _NEURAL_DRAFTS] = 0.0
    history[slot, _NEURAL_SURPRISE] = history[slot, NGRAM_SURPRISE] = 0.0
    history[slot, _WHOLE], history[slot, _COPY] = np.nan, 0.0
    history[slot, SPLICE_HIT] = SPLICE_START
    history[slot, _NEURAL_EXPECTED] = history[slot, _NGRAM_EXPECTED] = 0.0


class BehindMatches(NamedTuple):
    """The matches behind neural drafts, in the order of `Matches`; length 0 if there is none."""

    length: Ints
    agree: Ints
    seen: Ints
    available: Ints
    copied: Ints
    """The token that would be copied first; -1 if it is not known."""


@compiled
def observe(
    rows: RowFacts,
    speaks_for: Ints,
    history: NDArray[np.float64],
    tables: Tables,
    keys: NDArray[np.uint64],
    out: Floats,
) -> None:
    """Fill `out` with the features of the rows in `speaks_for`, in their order."""
    for place in range(speaks_for.shape[0]):
        row = speaks_for[place]
        past = history[rows.slots[row]]
        x = out[place]
        context = rows.prompt_tokens[row] + rows.position[row]
        if rows.length[row] > 0:
            x[0] = rows.length[row]
            x[1] = rows.agree[row]
            x[2] = rows.seen[row]
            if rows.start[row] >= IN_ANSWERS:
                x[3] = x[5] = -1.0
            else:
                x[3] = np.log(context - rows.start[row] + 0.0)
                x[5] = rows.start[row] < rows.prompt_tokens[row]
            x[4] = min(rows.available[row], 64)
            x[6] = rows.start[row] == past[_GOES_ON_AT]
            x[7] = past[_COPIED] if x[6] > 0 else 0.0
        else:
            x[:8] = np.nan
            x[0] = 0.0
        x[8] = past[HIT]
        x[9] = past[NEURAL_HIT]
        x[10] = past[_NEURAL_MEAN]
        hits = past[_NEURAL_HITS] + IMAGINED_DRAFTS * NEURAL_START
        x[11] = hits / (past[_NEURAL_DRAFTS] + IMAGINED_DRAFTS)
        x[12] = past[_NEURAL_SURPRISE]
        x[13] = past[NGRAM_SURPRISE]
        x[14] = past[_EMITTED]
        x[15] = past[_WHOLE]
        x[16] = past[_COPY]
        x[17] = rows.position[row]
        x[18] = np.log(context + 0.0)
        x[19] = rows.prompt_tokens[row]
        look_up(
            tables,
            rows.tail[row, TAIL - 1],
            rows.tail[row, TAIL - 2],
            rows.tail[row, TAIL - 3],
            rows.candidate[row, 0],
            rows.candidate[row, 1],
            keys,
            x[TABLES_AT : TABLES_AT + TOLD * LEVELS],
        )
        past[_NEURAL_EXPECTED] = x[_NEURAL_TABLE]
        past[_NGRAM_EXPECTED] = x[_NGRAM_TABLE]


@compiled
def remember(
    rows: RowFacts,
    history: NDArray[np.float64],
    emitted: Ints,
    emitted_tokens: Ints,
    drafted: Ints,
    neural_drafted: Ints,
    accepted: Ints,
) -> None:
    """Update the histories with a step's outcome; the candidate counts even if it was not drafted.

    The emitted tokens show how far the candidate was right.
    """
    for row in range(rows.slots.shape[0]):
        past = history[rows.slots[row]]
        count = emitted_tokens[row]
        if count == 0:
            continue  # an engine lost track of the request, so its emitted tokens are not known
        past[_EMITTED] = count
        if rows.length[row] > 0:
            right = 0
            while (
                right < count
                and right < CANDIDATE
                and rows.candidate[row, right] == emitted[row, right]
            ):
                right += 1
            surprise = (right > 0) - past[_NGRAM_EXPECTED]
            past[NGRAM_SURPRISE] += SURPRISE_MEMORY * (surprise - past[NGRAM_SURPRISE])
            past[HIT] += NGRAM_MEMORY * ((right > 0) - past[HIT])
            goes_on = rows.start[row] == past[_GOES_ON_AT]
            if right == min(count, CANDIDATE):
                past[_COPIED] = count + (past[_COPIED] if goes_on else 0.0)
                past[_GOES_ON_AT] = rows.start[row] + count
            else:
                past[_COPIED] = 0.0
                past[_GOES_ON_AT] = -1.0
        else:
            past[_COPIED] = 0.0
            past[_GOES_ON_AT] = -1.0
        past[_WHOLE] = accepted[row] >= drafted[row] if drafted[row] > 0 else np.nan
        past[_COPY] = drafted[row] > 0 and neural_drafted[row] == 0
        neural_tokens = neural_drafted[row]
        if neural_tokens > 0:
            neural_accepted = min(accepted[row], neural_tokens)
            past[NEURAL_HIT] += NEURAL_MEMORY * ((neural_accepted > 0) - past[NEURAL_HIT])
            past[_NEURAL_HITS] += neural_accepted > 0
            past[_NEURAL_DRAFTS] += 1.0
            surprise = (neural_accepted > 0) - past[_NEURAL_EXPECTED]
            past[_NEURAL_SURPRISE] += SURPRISE_MEMORY * (surprise - past[_NEURAL_SURPRISE])
            # A fully accepted draft is censored, so it counts for the mean only as a lower bound.
            if neural_accepted < neural_tokens or neural_accepted > past[_NEURAL_MEAN]:
                past[_NEURAL_MEAN] += NEURAL_MEMORY * (neural_accepted - past[_NEURAL_MEAN])
            if neural_accepted == neural_tokens and drafted[row] > neural_tokens:
                hit = accepted[row] > neural_tokens
                past[SPLICE_HIT] += SPLICE_MEMORY * (hit - past[SPLICE_HIT])


def fingerprint(names: tuple[str, ...] = (), *probes: NDArray[np.float64]) -> str:
    """A hash of all features' names and order, and of their values on a probe.

    A model is made for one fingerprint. `names` and `probes` are those of other features that the
    model reads. Values are rounded so that the hash is the same on every machine, and a rewrite
    that changes no value keeps it.
    """
    digest = hashlib.sha256()
    for name in (*BEFORE, *names):
        digest.update(name.encode() + b"\0")
    for values in (_probe(), *probes):
        # Adding zero turns -0.0 into 0.0.
        settled = np.round(np.nan_to_num(values, nan=-7.0), 4) + 0.0
        digest.update(settled.astype("<f8").tobytes())
    return "v" + digest.hexdigest()[:8]


def _probe() -> NDArray[np.float64]:
    """The features and histories of a few made-up rows over a few steps."""
    count = 6
    rng = np.random.Generator(np.random.PCG64(5))
    history = np.zeros((count, HISTORY))
    for slot in range(count):
        forget(history, slot)
    salt = np.uint64(3)
    keys = np.empty(LEVELS, np.uint64)
    token_tables.level_keys(salt, 4, 3, 2, 5, 4, keys)
    means = np.linspace(0.1, 0.9, LEVELS).astype(np.float32)
    tables = token_tables.packed(keys, means, 1 + means, 2 * means, (0.6, 0.4, 1.1, 1.3), 3)
    seen = []
    out = np.empty((count, FEATURES), np.float32)
    for _ in range(4):
        length = rng.integers(0, 5, count).astype(np.int32)
        rows = RowFacts(
            slots=np.arange(count, dtype=np.int32),
            prompt_tokens=np.full(count, 20, np.int32),
            position=rng.integers(1, 30, count).astype(np.int32),
            holds_neural=np.ones(count, np.bool_),
            length=length,
            start=rng.integers(1, 20, count).astype(np.int32),
            agree=np.minimum(length, 3).astype(np.int32),
            seen=np.minimum(length + 1, 8).astype(np.int32),
            available=rng.integers(1, 90, count).astype(np.int32),
            tail=rng.integers(2, 6, (count, TAIL)).astype(np.int32),
            candidate=rng.integers(2, 6, (count, CANDIDATE)).astype(np.int32),
        )
        observe(rows, rows.slots, history, tables, keys, out)
        seen.append(np.nan_to_num(out.astype(np.float64), nan=-7.0).ravel())
        emitted = rng.integers(2, 6, (count, 3)).astype(np.int32)
        counts = rng.integers(1, 4, count).astype(np.int32)
        neural = rng.integers(0, 4, count).astype(np.int32)
        drafted = (neural + rng.integers(0, 3, count)).astype(np.int32)
        remember(rows, history, emitted, counts, drafted, neural, counts - 1)
        seen.append(np.nan_to_num(history.ravel(), nan=-7.0))
    return np.concatenate(seen)
