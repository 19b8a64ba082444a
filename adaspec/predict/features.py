"""The features of a request before drafting, with the same code for training and serving.

What is known of a request is a function of its text: nothing is carried from step to step.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.answers import IN_ANSWERS
from adaspec.jit import compiled
from adaspec.predict import tables as token_tables
from adaspec.predict.tables import LEVELS, TOLD, Tables, fill_figures

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
and whether it begins in the prompt. Of a match in another request's answer, the log and whether it
begins in the prompt are -1. All but the length are NaN without a match. The rest: the output and
prompt tokens known, and the token tables' mean, log count and depth per key.
"""

TABLES_AT = BEFORE.index("neural_after_1")
FEATURES = len(BEFORE)


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


class BehindMatches(NamedTuple):
    """The matches behind neural drafts, in the order of `Matches`; length 0 if there is none."""

    length: Ints
    agree: Ints
    seen: Ints
    available: Ints
    copied: Ints
    """The token that would be copied first; -1 if it is not known."""


@compiled
def fill_features(
    rows: RowFacts,
    speaks_for: Ints,
    tables: Tables,
    keys: NDArray[np.uint64],
    out: Floats,
) -> None:
    """Fill `out` with the features of the rows in `speaks_for`, in their order."""
    for place in range(speaks_for.shape[0]):
        row = speaks_for[place]
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
        else:
            x[:6] = np.nan
            x[0] = 0.0
        x[6] = rows.position[row]
        x[7] = np.log(context + 0.0)
        x[8] = rows.prompt_tokens[row]
        fill_figures(
            tables,
            rows.tail[row, TAIL - 1],
            rows.tail[row, TAIL - 2],
            rows.tail[row, TAIL - 3],
            rows.candidate[row, 0],
            rows.candidate[row, 1],
            keys,
            x[TABLES_AT : TABLES_AT + TOLD * LEVELS],
        )


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
    """The features of a few made-up rows."""
    count = 6
    rng = np.random.Generator(np.random.PCG64(5))
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
        fill_features(rows, rows.slots, tables, keys, out)
        seen.append(np.nan_to_num(out.astype(np.float64), nan=-7.0).ravel())
    return np.concatenate(seen)
