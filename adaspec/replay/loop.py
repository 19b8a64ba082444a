"""Any policy, driven through a closed loop or in lockstep exactly as an engine would drive it.

What a policy can see is what this file hands over: facts about the text known so far, and what
the drafter has said in this step. The tape itself never leaves it.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel
from adaspec.draft import Matches, NgramIndex
from adaspec.errors import PolicyFault
from adaspec.policy.protocol import (
    Arrival,
    Batch,
    Drafts,
    Outcome,
    Policy,
    Proposal,
    Setup,
)
from adaspec.replay.drafting import KnownText, Script, verify
from adaspec.replay.result import Result
from adaspec.replay.rows import new_latency, seconds_per_token
from adaspec.replay.tape import Tape

Ints = NDArray[np.int32]


def run_policy(
    tape: Tape,
    policy: Policy,
    order: Ints,
    concurrency: int,
    cost: CostModel,
    cap: int,
    refills: bool = True,
    charged: bool = False,
) -> Result:
    """One run of the loop; without refills the first `concurrency` entries run to their ends.

    What deciding takes on this machine (index, look-ups, every call of the policy) is clocked;
    where it is `charged`, it also counts as time.
    """
    return _Run(tape, policy, order, concurrency, cost, cap, refills, charged).result()


class _Run:
    """The state of one run. Row arrays keep their length; `rows` of them are running."""

    def __init__(
        self,
        tape: Tape,
        policy: Policy,
        order: Ints,
        concurrency: int,
        cost: CostModel,
        cap: int,
        refills: bool,
        charged: bool,
    ) -> None:
        self.tape, self.policy, self.order, self.cost = tape, policy, order, cost
        self.cap, self.refills, self.charged = cap, refills, charged
        self.script = Script(tape)
        self.index = NgramIndex()
        self.request = np.zeros(concurrency, np.int64)
        self.entry = np.zeros(concurrency, np.int64)
        self.entered = np.zeros(concurrency)
        self.slots = np.arange(concurrency, dtype=np.int32)
        self.indexed = np.zeros(concurrency, np.int32)
        self.prompt = np.zeros(concurrency, np.int32)
        self.position = np.zeros(concurrency, np.int32)
        self.holds = np.zeros(concurrency, np.bool_)
        self.rows = concurrency
        self.following = 0
        self.time = self.decision_s = 0.0
        self.latency = new_latency(order)
        self.tokens = self.steps = self.row_steps = 0
        self.accepted = self.drafted = self.neural_steps = 0

    def result(self) -> Result:
        """Run to the end."""
        self.policy.start(
            Setup(
                cost=self.cost,
                cap=self.cap,
                neural_cap=min(self.tape.neural_cap, self.cap),
                slots=self.rows,
                shows_tokens=self.tape.shows_tokens,
                shows_confidences=self.tape.shows_confidences,
            )
        )
        for row in range(self.rows):
            self._enter(row)
        ended = False
        while self.rows > 0 and not ended:
            ended = self._step()
        return Result(
            tokens=self.tokens,
            time_s=self.time,
            steps=self.steps,
            row_steps=self.row_steps,
            accepted=self.accepted,
            drafted=self.drafted,
            neural_steps=self.neural_steps,
            token_s=seconds_per_token(self.tape.columns, self.order, self.latency),
            decision_s=self.decision_s,
        )

    def _enter(self, row: int) -> None:
        at = self.following
        self.following += 1
        r = int(self.order[at])
        request = self.tape.requests[r]
        known = np.append(request.prompt_tokens, request.output_tokens[:1]).astype(np.int32)
        self.indexed[row] = self.index.open(known)
        self.time += float(self.tape.columns.entry_s[r])
        self.request[row], self.entry[row], self.entered[row] = r, at, self.time
        self.prompt[row], self.position[row] = len(request.prompt_tokens), 1
        arrival = Arrival(int(self.slots[row]), len(request.prompt_tokens), self.rows)
        self.holds[row] = bool(self.policy.admit(arrival)) and self.tape.neural_cap > 0

    def _step(self) -> bool:
        rows = self.rows
        began = perf_counter()
        request, indexed = self.request[:rows], self.indexed[:rows]
        matches = self.index.lookup(indexed)
        batch = Batch(
            slots=self.slots[:rows].copy(),
            prompt_tokens=self.prompt[:rows].copy(),
            position=self.position[:rows].copy(),
            holds_neural=self.holds[:rows].copy(),
            matches=matches,
            context=KnownText(self.index, indexed.copy(), matches),
        )
        drafts = self._draft(batch)
        proposal = self.policy.settle(batch, drafts)
        neural_len, ngram_len, start = self._checked(batch, drafts, proposal)
        decision_s = perf_counter() - began
        position = self.position[:rows].copy()
        result = verify(
            self.script.text,
            self.script.start,
            self.tape.columns,
            request,
            position,
            neural_len,
            ngram_len,
            start,
        )
        accepted, counts, emitted, left = result
        drafted = neural_len + ngram_len
        context = int((self.prompt[:rows] + position).sum())
        step_s = self.cost.step_s(
            rows + int(drafted.sum()), context, drafts.count, bool(self.holds[:rows].any())
        )
        self.time += step_s
        self.steps += 1
        self.row_steps += rows
        self.tokens += int(counts.sum())
        self.drafted += int(drafted.sum())
        self.accepted += int(np.minimum(accepted, left).sum())
        self.neural_steps += drafts.count > 0
        began = perf_counter()
        self.policy.learn(
            batch,
            proposal,
            Outcome(drafted, neural_len, accepted, emitted, counts, step_s),
        )
        decision_s += perf_counter() - began
        self.decision_s += decision_s
        if self.charged:
            self.time += decision_s
        return self._advance(emitted, counts)

    def _draft(self, batch: Batch) -> Drafts:
        most = int(self.policy.plan(batch))
        limit = min(self.tape.neural_cap, self.cap)
        if not 0 <= most <= limit:
            raise PolicyFault(
                f"policy '{self.policy.name}' plans {most} neural tokens; "
                f"this trace and cap can replay 0..{limit}"
            )
        if most > 0 and not batch.holds_neural.any():
            raise PolicyFault(
                f"policy '{self.policy.name}' drafts where no request holds the neural drafter"
            )
        rows = self.rows
        step = self.script.step(self.request[:rows], self.position[:rows], self.holds[:rows])
        drafts = step.revealed(0, self.index, self.indexed[:rows])
        for count in range(1, most + 1):
            if count > 1 and not self.policy.proceed(batch, drafts):
                break
            drafts = step.revealed(count, self.index, self.indexed[:rows])
        return drafts

    def _checked(self, batch: Batch, drafts: Drafts, proposal: Proposal) -> tuple[Ints, Ints, Ints]:
        """Neural and copied lengths after cuts, and where copying starts."""
        neural_len = np.asarray(proposal.neural_len, dtype=np.int32)
        ngram_len = np.asarray(proposal.ngram_len, dtype=np.int32)
        if neural_len.shape != (self.rows,) or ngram_len.shape != (self.rows,):
            raise PolicyFault(
                f"policy '{self.policy.name}' proposes for {neural_len.shape} and "
                f"{ngram_len.shape} rows, {self.rows} are running"
            )
        drafted = np.where(batch.holds_neural, drafts.count, 0)
        if (neural_len < 0).any() or (neural_len > drafted).any() or (ngram_len < 0).any():
            raise PolicyFault(
                f"policy '{self.policy.name}' proposes more neural tokens than were drafted, "
                "or a negative length"
            )
        found: Matches = batch.matches
        start, available = found.start, found.available
        if proposal.ngram_start is not None:
            named = np.asarray(proposal.ngram_start, dtype=np.int32)
            if (named >= batch.context_tokens).any():
                raise PolicyFault(f"policy '{self.policy.name}' copies from beyond the known text")
            start = named
            available = np.where(named >= 0, batch.context_tokens - named, 0)
        spliced = (neural_len > 0) & (ngram_len > 0)
        if spliced.any():
            behind = drafts.behind(neural_len)
            start = np.where(neural_len > 0, behind.start, start)
            available = np.where(neural_len > 0, behind.available, available)
            if self.tape.stressed:
                at = self.tape.columns.offset[self.request[: self.rows]] + batch.position
                wrong = spliced & (self.tape.columns.neural[at] < neural_len)
                available = np.where(wrong, self.cap, available)
        room = self.cap - neural_len
        ngram_len = np.minimum(np.minimum(ngram_len, available), room).astype(np.int32)
        return neural_len, ngram_len, start.astype(np.int32)

    def _advance(self, emitted: Ints, counts: Ints) -> bool:
        rows = self.rows
        self.position[:rows] += counts
        length = self.tape.columns.length[self.request[:rows]]
        done = self.position[:rows] >= length
        kept = np.flatnonzero(~done)
        if len(kept):
            flat = emitted[kept][emitted[kept] >= 0]
            began = perf_counter()
            self.index.extend(self.indexed[kept], flat, counts[kept])
            self.decision_s += perf_counter() - began
        if not done.any():
            return False
        ended = False
        now = self.time
        for row in np.flatnonzero(done):
            self.latency[self.entry[row]] = now - self.entered[row]
            self.index.close(int(self.indexed[row]))
        self.policy.release(self.slots[:rows][done].copy())
        if self.refills:
            for row in np.flatnonzero(done):
                if self.following < len(self.order):
                    self._enter(int(row))
                else:
                    ended = True
        else:
            for column in (
                self.request,
                self.entry,
                self.entered,
                self.slots,
                self.indexed,
                self.prompt,
                self.position,
                self.holds,
            ):
                column[: len(kept)] = column[kept]
            self.rows = len(kept)
        return ended
