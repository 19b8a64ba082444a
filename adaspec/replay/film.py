"""The tape as compiled loops read it: what is known of the running rows at a step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled
from adaspec.predict.features import CANDIDATE, TAIL, Found, Rows
from adaspec.replay import rows as running_rows
from adaspec.replay.recorded import RecordedText
from adaspec.replay.tape import Columns, Tape

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]


class Film(NamedTuple):
    """The tape as the loop reads it."""

    columns: Columns
    facts: Ints
    text: Ints
    text_start: Longs
    drafted: Ints
    confidences: Floats
    behind_start: Ints
    """(positions, draft cap) where the match behind the first drafted tokens lies."""


def film_of(tape: Tape) -> Film:
    """The tape as the loop reads it."""
    recorded = RecordedText(tape)
    return Film(
        tape.columns,
        recorded.facts,
        recorded.text,
        recorded.start,
        tape.drafted,
        tape.confidences,
        tape.behind_start,
    )


@compiled
def gather(
    film: Film, request: Longs, position: Longs, slots: Ints, holds: NDArray[np.bool_], count: int
) -> Rows:
    """The running rows before drafting."""
    columns = film.columns
    rows = Rows(
        slots[:count].copy(),
        np.empty(count, np.int32),
        np.empty(count, np.int32),
        np.empty(count, np.bool_),
        np.empty(count, np.int32),
        np.empty(count, np.int32),
        np.empty(count, np.int32),
        np.empty(count, np.int32),
        np.empty(count, np.int32),
        np.full((count, TAIL), -1, np.int32),
        np.full((count, CANDIDATE), -1, np.int32),
    )
    for row in range(count):
        r, p = request[row], position[row]
        i = columns.offset[r] + p
        base = film.text_start[r]
        known = columns.prompt[r] + p
        rows.prompt_tokens[row], rows.position[row] = columns.prompt[r], p
        rows.holds_neural[row] = holds[slots[row]]
        rows.length[row], rows.start[row] = film.facts[0, i], film.facts[1, i]
        rows.agree[row], rows.seen[row] = film.facts[3, i], film.facts[4, i]
        rows.available[row] = film.facts[5, i]
        for k in range(min(TAIL, known)):
            rows.tail[row, TAIL - 1 - k] = film.text[base + known - 1 - k]
        for k in range(min(CANDIDATE, rows.available[row])):
            rows.candidate[row, k] = film.text[base + rows.start[row] + k]
    return rows


@compiled
def behind(
    film: Film,
    running: running_rows.Rows,
    rows: int,
    seen: Rows,
    neural_len: Ints,
    most_behind: int,
    tokens: bool,
) -> Found:
    """The matches behind so many drafted tokens per row; true ones where none are recorded.

    `tokens`: whether to tell which token would be copied, as a policy sees it that reads drafts.
    """
    columns = film.columns
    found = np.zeros((5, rows), np.int32)
    found[4] = -1
    for row in range(rows):
        k = neural_len[row]
        if k == 0 or not seen.holds_neural[row]:
            continue
        r, p = running.request[row], running.position[row]
        i = columns.offset[r] + p
        if film.drafted.shape[1] > 0:
            if film.drafted[i, k - 1] >= 0:
                found[0, row] = columns.behind_match[i, k - 1]
                found[1, row] = columns.behind_agree[i, k - 1]
                found[2, row] = columns.behind_seen[i, k - 1]
                found[3, row] = columns.behind_available[i, k - 1]
                start, known = film.behind_start[i, k - 1], columns.prompt[r] + p
                if tokens and found[0, row] > 0 and start < known:
                    found[4, row] = film.text[film.text_start[r] + start]
                elif tokens and found[0, row] > 0:
                    found[4, row] = film.drafted[i, start - known]
        elif p + k < columns.length[r]:
            found[0, row] = film.facts[0, i + k]
            found[1, row] = film.facts[3, i + k]
            found[2, row] = film.facts[4, i + k]
            found[3, row] = min(film.facts[5, i + k], most_behind)
    return Found(found[0], found[1], found[2], found[3], found[4])
