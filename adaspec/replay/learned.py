"""The learned policy at full speed: its own compiled stages inside one compiled closed loop.

It is also how training sees the states in which policies decide: a run can record what it saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, step_s
from adaspec.jit import compiled
from adaspec.policy import stages
from adaspec.policy.desk import Desk, new_desk
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.pace import context_of
from adaspec.predict.evidence import EVIDENCE
from adaspec.predict.features import CANDIDATE, FEATURES, TAIL, Found, Rows, forget
from adaspec.predict.model import Mind
from adaspec.predict.splicing import SPLICE
from adaspec.replay import rows as running_rows
from adaspec.replay.drafting import Script
from adaspec.replay.result import Result
from adaspec.replay.rows import advance, enter, new_latency, seconds_per_token
from adaspec.replay.tape import Columns, Tape

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]


class Record(NamedTuple):
    """What a run saw, for training; empty arrays record nothing."""

    at: Longs
    """Flat position of each decision."""
    x: Floats
    held: NDArray[np.bool_]
    """Whether the request held the neural drafter."""
    splice_at: Longs
    """Flat position of each decision that spliced, its neural length, and features."""
    splice_length: Ints
    splice_x: Floats
    evidence_at: Longs
    evidence_depth: Ints
    evidence_x: Floats
    filled: Longs
    """How many of each kind."""


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


@dataclass(frozen=True, slots=True)
class Panel:
    """Policies that share a batch, each deciding for the requests that it never saw.

    They are alike in caps and in what they read; the pace, the trust and the guard are common.
    """

    name: str
    policies: tuple[LearnedPolicy, ...]
    member: Ints
    """Which of them decides for each request of the tape."""
    static_tuned: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By concurrency, for each of them the static rule tuned on the requests that it saw."""


def alone(policy: LearnedPolicy, tape: Tape) -> Panel:
    """A panel of one."""
    return Panel(policy.name, (policy,), np.zeros(len(tape), np.int32))


STATIC = 6
"""Numbers of a static rule that may stand in for the policy's choices while it watches."""


@compiled
def _gather(
    film: Film, request: Longs, position: Longs, slots: Ints, holds: NDArray[np.bool_], count: int
) -> Rows:
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
def _speaks_for(member: Ints, request: Longs, rows: int, mind: int, minds: int) -> Ints:
    """The rows of the requests that this mind speaks for."""
    if minds == 1:
        return np.arange(rows).astype(np.int32)
    found = np.empty(rows, np.int32)
    count = 0
    for row in range(rows):
        if member[request[row]] == mind:
            found[count] = row
            count += 1
    return found[:count]


@compiled
def _behind(
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


@compiled
def _loop(
    film: Film,
    order: Ints,
    concurrency: int,
    refills: bool,
    minds: tuple[Mind, ...],
    member: Ints,
    desk: Desk,
    knobs: Array,
    reads: bool,
    cap: int,
    most_behind: int,
    neural_cap: int,
    cost: Array,
    rule: Longs,
    record: Record,
    sums: Array,
    latency: Array,
) -> None:
    """The closed loop; a `rule` of six numbers chooses in the policy's place.

    `member` says which of the minds speaks for each request. A record is of one mind alone.
    Where a rule chooses, every request holds the drafter: nobody would learn from one refused.
    `most_behind` is the run's own cap, to which look-ups on the true path are cut.
    """
    columns = film.columns
    ruled = rule.shape[0] > 0
    records = record.at.shape[0] > 0
    common = knobs[0]
    rows = following = concurrency
    running, time = enter(columns, order, concurrency, refills)
    slots = np.arange(concurrency).astype(np.int32)
    holds = np.zeros(concurrency, np.bool_)
    for slot in range(concurrency):
        forget(desk.history, slot)
        holds[slot] = neural_cap > 0 and (ruled or stages.admits(desk))
    emitted = np.zeros(concurrency, np.int64)
    tokens = steps = row_steps = drafted_sum = taken_sum = neural_steps = 0
    ended = False
    while rows > 0 and not ended:
        seen = _gather(film, running.request, running.position, slots, holds, rows)
        context = context_of(seen)
        price = stages.price_of(desk, common, seen, cost)
        # Beside a rule every match is judged: the policy may not know yet what could pay.
        asking = 0.0 if ruled else price
        for m in range(len(minds)):
            said_by = _speaks_for(member, running.request, rows, m, len(minds))
            stages.consider(minds[m], desk, knobs[m], seen, said_by, price)
        outlook = minds[0].outlook
        most = stages.forwards_of(desk, outlook, reads, common, seen, cost, cap, neural_cap)
        if records:
            for row in range(rows):
                at = record.filled[0]
                if at < record.at.shape[0]:
                    record.at[at] = columns.offset[running.request[row]] + running.position[row]
                    record.x[at] = desk.x[row]
                    record.held[at] = seen.holds_neural[row]
                    record.filled[0] = at + 1
        if ruled:
            most = min(rule[2], neural_cap)
        holding = bool(seen.holds_neural.any())
        count = most
        if reads and most > 0:
            tokens_shown = np.full((rows, neural_cap), -1, np.int32)
            shown = np.full((rows, neural_cap, film.confidences.shape[2]), np.nan, np.float32)
            count = 0
            while count < neural_cap:
                for row in range(rows):
                    if seen.holds_neural[row]:
                        i = columns.offset[running.request[row]] + running.position[row]
                        tokens_shown[row, count] = film.drafted[i, count]
                        if film.confidences.shape[0] > 0:
                            shown[row, count] = film.confidences[i, count]
                count += 1
                found = _behind(film, running, rows, seen, np.full(rows, count), most_behind, True)
                for m in range(len(minds)):
                    said_by = _speaks_for(member, running.request, rows, m, len(minds))
                    stages.take_evidence(
                        minds[m],
                        desk,
                        knobs[m],
                        seen,
                        said_by,
                        tokens_shown,
                        shown,
                        count,
                        found,
                        asking,
                        cap,
                    )
                if records:
                    asked = 0
                    for row in range(rows):
                        if not seen.holds_neural[row]:
                            continue
                        at = record.filled[2]
                        if at < record.evidence_at.shape[0]:
                            i = columns.offset[running.request[row]] + running.position[row]
                            record.evidence_at[at] = i
                            record.evidence_depth[at] = count
                            record.evidence_x[at] = desk.evidence_x[asked]
                            record.filled[2] = at + 1
                        asked += 1
                    asked = 0
                    for row in range(rows):
                        if not stages.may_splice(desk, seen, row, count, found, asking):
                            continue
                        at = record.filled[1]
                        if at < record.splice_at.shape[0]:
                            i = columns.offset[running.request[row]] + running.position[row]
                            record.splice_at[at] = i
                            record.splice_length[at] = count
                            record.splice_x[at] = desk.splice_x[asked]
                            record.filled[1] = at + 1
                        asked += 1
                if ruled:
                    if count >= most:
                        break
                elif count < neural_cap and not stages.goes_on(
                    desk, outlook, common, seen, cost, cap, count, neural_cap
                ):
                    break
        neural_len = np.zeros(rows, np.int32)
        ngram_len = np.zeros(rows, np.int32)
        if ruled:
            for row in range(rows):
                if rule[1] > 0 and seen.length[row] >= rule[0]:
                    ngram_len[row] = min(rule[1], seen.available[row], cap)
                else:
                    neural_len[row] = count if seen.holds_neural[row] else 0
            stages.commit(desk, neural_len, ngram_len)
        else:
            stages.choose(desk, common, seen, cost, cap, count, neural_len, ngram_len)
        # Where drafts are read, the matches behind them were known as lengths were chosen.
        if ruled or not (reads and most > 0):
            found = _behind(film, running, rows, seen, neural_len, most_behind, False)
            for m in range(len(minds)):
                said_by = _speaks_for(member, running.request, rows, m, len(minds))
                stages.splice(
                    minds[m], desk, seen, said_by, asking, cap, neural_len, found, ngram_len
                )
            if records:
                asked = 0
                for row in range(rows):
                    if stages.may_splice(desk, seen, row, neural_len[row], found, asking):
                        at = record.filled[1]
                        if at < record.splice_at.shape[0]:
                            i = columns.offset[running.request[row]] + running.position[row]
                            record.splice_at[at] = i
                            record.splice_length[at] = neural_len[row]
                            record.splice_x[at] = desk.splice_x[asked]
                            record.filled[1] = at + 1
                        asked += 1
        accepted = np.zeros(rows, np.int32)
        counts = np.zeros(rows, np.int32)
        most_emitted = 0
        for row in range(rows):
            r, p = running.request[row], running.position[row]
            i = columns.offset[r] + p
            left = columns.length[r] - p
            k = neural_len[row]
            if k > 0:
                accepted[row] = min(columns.neural[i], k)
                if accepted[row] == k:
                    if k < left:
                        accepted[row] += min(ngram_len[row], columns.run[i + k])
                    else:
                        ngram_len[row] = 0
            else:
                ngram_len[row] = min(ngram_len[row], seen.available[row])
                accepted[row] = min(ngram_len[row], columns.run[i])
            counts[row] = min(accepted[row] + 1, left)
            emitted[row] = counts[row]
            taken_sum += min(accepted[row], left)
            most_emitted = max(most_emitted, counts[row])
        came = np.full((rows, most_emitted), -1, np.int32)
        total = 0
        for row in range(rows):
            r, p = running.request[row], running.position[row]
            truth = film.text_start[r] + columns.prompt[r] + p
            came[row, : counts[row]] = film.text[truth : truth + counts[row]]
            total += neural_len[row] + ngram_len[row]
            tokens += counts[row]
        seconds = step_s(cost, rows + total, context, count, holding)
        stages.learn(
            desk,
            common,
            seen,
            cost,
            came,
            counts,
            neural_len + ngram_len,
            neural_len,
            accepted,
            count,
            seconds,
        )
        time += seconds
        steps += 1
        row_steps += rows
        drafted_sum += total
        neural_steps += count > 0
        if not refills:
            kept = 0
            for row in range(rows):
                if running.position[row] + emitted[row] < columns.length[running.request[row]]:
                    slots[kept] = slots[row]
                    kept += 1
        entered = following
        rows, following, time, ended = advance(
            columns, order, refills, running, rows, following, emitted, time, latency
        )
        for row in range(rows):
            if running.entry[row] >= entered:
                forget(desk.history, slots[row])
                holds[slots[row]] = neural_cap > 0 and (ruled or stages.admits(desk))
    sums[0], sums[1], sums[2], sums[3] = tokens, time, steps, row_steps
    sums[4], sums[5], sums[6] = taken_sum, drafted_sum, neural_steps


def film_of(tape: Tape) -> Film:
    """The tape as the loop reads it."""
    script = Script(tape, 0)
    return Film(
        tape.columns,
        script.facts,
        script.text,
        script.start,
        tape.drafted,
        tape.confidences,
        tape.behind_start,
    )


def new_record(decisions: int, splices: int, depths: int) -> Record:
    """Room for so many of each kind; what comes beyond is dropped."""
    return Record(
        at=np.zeros(decisions, np.int64),
        x=np.zeros((decisions, FEATURES), np.float32),
        held=np.zeros(decisions, np.bool_),
        splice_at=np.zeros(splices, np.int64),
        splice_length=np.zeros(splices, np.int32),
        splice_x=np.zeros((splices, len(SPLICE)), np.float32),
        evidence_at=np.zeros(depths, np.int64),
        evidence_depth=np.zeros(depths, np.int32),
        evidence_x=np.zeros((depths, len(EVIDENCE)), np.float32),
        filled=np.zeros(3, np.int64),
    )


def run_learned(
    tape: Tape,
    film: Film,
    policy: LearnedPolicy | Panel,
    order: Ints,
    concurrency: int,
    cost: CostModel,
    cap: int,
    refills: bool = True,
    rule: Longs | None = None,
    record: Record | None = None,
) -> Result:
    """What the generic loop would say of this policy, compiled."""
    sums = np.zeros(7)
    latency = new_latency(order)
    panel = policy if isinstance(policy, Panel) else alone(policy, tape)
    first = panel.policies[0]
    most_behind, cap = cap, min(first.cap, cap)
    _loop(
        film,
        order,
        concurrency,
        refills,
        tuple(each.mind for each in panel.policies),
        panel.member,
        new_desk([each.model for each in panel.policies], concurrency),
        np.stack([each.knobs for each in panel.policies]),
        first.model.reads_evidence and tape.shows_tokens,
        cap,
        most_behind,
        min(first.neural_cap, tape.neural_cap, cap),
        cost.constants(),
        np.empty(0, np.int64) if rule is None else rule,
        new_record(0, 0, 0) if record is None else record,
        sums,
        latency,
    )
    tokens, time, steps, row_steps, accepted, drafted, neural_steps = sums
    return Result(
        tokens=tokens,
        time_s=time,
        steps=steps,
        row_steps=row_steps,
        accepted=accepted,
        drafted=drafted,
        neural_steps=neural_steps,
        token_s=seconds_per_token(tape.columns, order, latency),
    )
