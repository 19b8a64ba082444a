"""The learned policy at full speed: its own compiled stages inside one compiled closed loop.

It is also how training sees the states in which policies decide: a run can record what it saw.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, step_s
from adaspec.jit import compiled
from adaspec.policy import stages
from adaspec.policy.desk import Desk, new_desk
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.pace import context_of
from adaspec.predict.features import forget
from adaspec.predict.model import Mind
from adaspec.replay.film import Film, behind, gather
from adaspec.replay.panel import Panel, alone, speaks_for
from adaspec.replay.record import Record, keep_decisions, keep_evidence, keep_splices, new_record
from adaspec.replay.result import Result
from adaspec.replay.rows import Rows as Running
from adaspec.replay.rows import advance, enter, new_latency, seconds_per_token
from adaspec.replay.tape import Columns, Tape

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


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
    running, time = enter(columns, order, concurrency, refills, False)
    slots = np.arange(concurrency).astype(np.int32)
    holds = np.zeros(concurrency, np.bool_)
    time += _admit(
        columns, running, 0, rows, slots, holds, refills, ruled, desk, common, cost, neural_cap
    )
    emitted = np.zeros(concurrency, np.int64)
    tokens = steps = row_steps = drafted_sum = taken_sum = neural_steps = 0
    ended = False
    while rows > 0 and not ended:
        seen = gather(film, running.request, running.position, slots, holds, rows)
        context = context_of(seen)
        holders = int(np.count_nonzero(seen.holds_neural))
        if (
            not ruled
            and holders > 0
            and not stages.keeps(desk, common, cost, rows, holders, context)
        ):
            seen.holds_neural[:] = False
            holds[slots[:rows]] = False
        price = stages.price_of(desk, common, seen, cost)
        # Beside a rule every match is judged: the policy may not know yet what could pay.
        asking = 0.0 if ruled else price
        for m in range(len(minds)):
            said_by = speaks_for(member, running.request, rows, m, len(minds))
            stages.consider(minds[m], desk, knobs[m], seen, said_by, price)
        # How far a drafted token may move a belief is the drafter's nature: any mind can tell.
        outlook = minds[0].outlook
        most = stages.forwards_of(desk, outlook, reads, common, seen, cost, cap, neural_cap)
        at = columns.offset[running.request[:rows]] + running.position[:rows]
        if records:
            keep_decisions(record, desk, seen, at)
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
                        tokens_shown[row, count] = film.drafted[at[row], count]
                        if film.confidences.shape[0] > 0:
                            shown[row, count] = film.confidences[at[row], count]
                count += 1
                depths = np.full(rows, count, np.int32)
                found = behind(film, running, rows, seen, depths, most_behind, True)
                for m in range(len(minds)):
                    said_by = speaks_for(member, running.request, rows, m, len(minds))
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
                    keep_evidence(record, desk, seen, at, count)
                    keep_splices(record, desk, seen, at, depths, found, asking)
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
            stages.choose(desk, reads, common, seen, cost, cap, count, neural_len, ngram_len)
        # Where drafts are read, the matches behind them were known as lengths were chosen.
        if ruled or not (reads and most > 0):
            found = behind(film, running, rows, seen, neural_len, most_behind, False)
            for m in range(len(minds)):
                said_by = speaks_for(member, running.request, rows, m, len(minds))
                stages.splice(
                    minds[m], desk, seen, said_by, asking, cap, neural_len, found, ngram_len
                )
            if records:
                keep_splices(record, desk, seen, at, neural_len, found, asking)
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
            np.ones(rows, np.bool_),
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
            columns, order, refills, False, running, rows, following, emitted, time, latency
        )
        time += _admit(
            columns,
            running,
            entered,
            rows,
            slots,
            holds,
            refills,
            ruled,
            desk,
            common,
            cost,
            neural_cap,
        )
    sums[0], sums[1], sums[2], sums[3] = tokens, time, steps, row_steps
    sums[4], sums[5], sums[6] = taken_sum, drafted_sum, neural_steps


@compiled
def _admit(
    columns: Columns,
    running: Running,
    entered: int,
    rows: int,
    slots: Ints,
    holds: NDArray[np.bool_],
    refills: bool,
    ruled: bool,
    desk: Desk,
    knobs: Array,
    cost: Array,
    neural_cap: int,
) -> float:
    """Let the policy say which of the rows that came last hold the drafter; what its prefill takes.

    Rows from entry `entered` on are new. Those that enter together wait for each other.
    """
    seconds = 0.0
    for row in range(rows):
        if running.entry[row] < entered:
            continue
        r, slot = running.request[row], slots[row]
        forget(desk.history, slot)
        holds[slot] = neural_cap > 0 and (
            ruled or stages.admits(desk, knobs, cost, slot, columns.prompt[r], rows)
        )
        if holds[slot]:
            seconds += columns.draft_entry_s[r]
        if refills:
            running.entered[row] += seconds
    return seconds


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
