"""Any policy, driven through a closed loop or in lockstep exactly as an engine would drive it.

What a policy can see is what this file hands over: facts about the text known so far, and what
the drafter has said in this step. The tape itself never leaves it.
"""

from __future__ import annotations

import operator
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, step_s
from adaspec.draft import NgramIndex
from adaspec.errors import PolicyFault
from adaspec.jit import compiled
from adaspec.policy.base import keeps_drafter
from adaspec.policy.protocol import (
    Arrival,
    Batch,
    Drafts,
    Outcome,
    Policy,
    Proposal,
    Setup,
)
from adaspec.replay.drafting import KnownText, Script, Step, Verdict, verify
from adaspec.replay.result import Result
from adaspec.replay.rows import entry_s, new_latency, seconds_per_token
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
    """One run of the loop: it ends with the step that frees a slot that nobody is left to fill.

    Without refills the first `concurrency` entries of the order all run to their ends.

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
        self.script = Script(tape, cap)
        self.constants = cost.constants()
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
        arrival = Arrival(int(self.slots[row]), len(request.prompt_tokens), self.rows)
        self.holds[row] = bool(self.policy.admit(arrival)) and self.tape.neural_cap > 0
        self.time += entry_s(self.tape.columns, r, bool(self.holds[row]))
        self.request[row], self.entry[row] = r, at
        self.entered[row] = self.time if self.refills else 0.0
        self.prompt[row], self.position[row] = len(request.prompt_tokens), 1

    def _step(self) -> bool:
        rows = self.rows
        began = perf_counter()
        request, indexed = self.request[:rows], self.indexed[:rows]
        position, holds = self.position[:rows], self.holds[:rows]
        matches = self.index.lookup(indexed)
        # A policy may write into what it is handed: what is verified rests on copies of our own.
        start, available = matches.start.copy(), matches.available.copy()
        batch = Batch(
            slots=self.slots[:rows].copy(),
            prompt_tokens=self.prompt[:rows].copy(),
            position=position.copy(),
            holds_neural=holds.copy(),
            matches=matches,
            context=KnownText(self.index, indexed.copy(), start),
        )
        if holds.any() and not keeps_drafter(self.policy, batch):
            batch.holds_neural[:] = holds[:] = False
        step = Step(self.script, request, position, holds, self.index, indexed)
        drafts, count = self._draft(batch, step)
        proposal = self.policy.settle(batch, drafts)
        neural_len, ngram_len, start = self._cut(proposal, step, count, start, available)
        decision_s = perf_counter() - began
        verdict = verify(
            self.script.text,
            self.script.start,
            self.tape.columns,
            request,
            position,
            neural_len,
            ngram_len,
            start,
        )
        step_s = self._count(neural_len, ngram_len, count, verdict)
        began = perf_counter()
        self.policy.learn(
            batch,
            proposal,
            Outcome(
                drafted=neural_len + ngram_len,
                neural_drafted=neural_len,
                accepted=verdict.accepted,
                emitted=verdict.emitted,
                emitted_tokens=verdict.counts.copy(),
                step_s=step_s,
            ),
        )
        going_on = ~verdict.done
        if going_on.any():
            self.index.extend(indexed[going_on], verdict.flat, verdict.counts[going_on])
        decision_s += perf_counter() - began
        self.decision_s += decision_s
        if self.charged:
            self.time += decision_s
        position += verdict.counts
        return self._refill(verdict.done) if verdict.done.any() else False

    def _draft(self, batch: Batch, step: Step) -> tuple[Drafts, int]:
        """Run the drafter as far as the policy wants it; what it said, and how many forwards."""
        planned = self.policy.plan(batch)
        limit = min(self.tape.neural_cap, self.cap)
        try:
            most = operator.index(planned)
        except TypeError:
            raise PolicyFault(
                f"policy '{self.policy.name}' plans {planned!r} neural tokens, not a whole number"
            ) from None
        if not 0 <= most <= limit:
            raise PolicyFault(
                f"policy '{self.policy.name}' plans {most} neural tokens; "
                f"this trace and cap can replay 0..{limit}"
            )
        if most > 0 and not self.holds[: self.rows].any():
            raise PolicyFault(
                f"policy '{self.policy.name}' drafts where no request holds the neural drafter"
            )
        count = min(most, 1)
        drafts = step.drafts(count)
        while count < most and self.policy.proceed(batch, drafts):
            if step.committed.any():
                raise PolicyFault(
                    f"policy '{self.policy.name}' looks behind neural tokens and then drafts on: "
                    "this trace lacks the drafted tokens, so the look has shown it the true ones"
                )
            count += 1
            drafts = step.drafts(count)
        return drafts, count

    def _cut(
        self, proposal: Proposal, step: Step, count: int, start: Ints, available: Ints
    ) -> tuple[Ints, Ints, Ints]:
        """Neural and copied lengths after cuts, and where copying starts; faults are refused."""
        rows, name = self.rows, self.policy.name
        if not isinstance(proposal, Proposal):
            raise PolicyFault(f"policy '{name}' settles on {proposal!r}, not on a Proposal")
        neural_len = _whole(proposal.neural_len, rows, name, "neural_len")
        ngram_len = _whole(proposal.ngram_len, rows, name, "ngram_len")
        if not _drafted(neural_len, ngram_len, self.holds[:rows], count):
            raise PolicyFault(
                f"policy '{name}' proposes more neural tokens than were drafted ({count}), "
                "or a negative length"
            )
        if ((step.committed > 0) & (step.committed != neural_len)).any():
            raise PolicyFault(
                f"policy '{name}' looks behind {step.committed.tolist()} neural tokens and then "
                f"verifies {neural_len.tolist()}: this trace lacks the drafted tokens, the true "
                "ones stand in for them, and so looking behind K of a row commits it to verifying K"
            )
        if proposal.ngram_start is not None:
            context = self.prompt[:rows] + self.position[:rows]
            named = _whole(proposal.ngram_start, rows, name, "ngram_start")
            if (named >= context).any():
                raise PolicyFault(f"policy '{name}' copies from beyond the known text")
            elsewhere = named >= 0
            if (named < -1).any() or (elsewhere & (neural_len > 0)).any():
                raise PolicyFault(
                    f"policy '{name}' proposes ngram_start {named.tolist()}: -1 is the most recent "
                    "match, and behind neural tokens no other can be named"
                )
            start = np.where(elsewhere, named, start)
            available = np.where(elsewhere, context - named, available)
        if count and (neural_len.astype(np.bool_) & ngram_len.astype(np.bool_)).any():
            behind, follows = step.copies(count, neural_len)
            drafted = neural_len > 0
            start = np.where(drafted, behind, start)
            available = np.where(drafted, follows, available)
            if self.tape.stressed:
                wrong = drafted & (step.accepted < neural_len)
                available = np.where(wrong, self.cap, available).astype(np.int32)
        _trim(ngram_len, neural_len, available, self.cap)
        return neural_len, ngram_len, start

    def _count(self, neural_len: Ints, ngram_len: Ints, count: int, verdict: Verdict) -> float:
        """Add a step to the sums; its modelled seconds."""
        rows = self.rows
        drafted = int(neural_len.sum() + ngram_len.sum())
        context = int(self.prompt[:rows].sum() + self.position[:rows].sum())
        seconds = step_s(
            self.constants, rows + drafted, context, count, bool(self.holds[:rows].any())
        )
        self.time += seconds
        self.steps += 1
        self.row_steps += rows
        self.tokens += int(verdict.counts.sum())
        self.drafted += drafted
        self.accepted += int(np.minimum(verdict.accepted, verdict.left).sum())
        self.neural_steps += count > 0
        return seconds

    def _refill(self, done: NDArray[np.bool_]) -> bool:
        """Let requests that are done go and others in; whether a slot stayed empty."""
        rows = self.rows
        kept = np.flatnonzero(~done)
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


def _whole(values: object, rows: int, name: str, what: str) -> Ints:
    """One whole number per row, as our own array."""
    found = np.array(values)
    if found.shape != (rows,) or found.dtype.kind not in "iu":
        raise PolicyFault(
            f"policy '{name}' proposes {what} of shape {found.shape} and type {found.dtype}: "
            f"one whole number for each of {rows} running rows is needed"
        )
    return found.clip(-(1 << 30), 1 << 30).astype(np.int32)


@compiled
def _drafted(neural_len: Ints, ngram_len: Ints, holds: NDArray[np.bool_], count: int) -> bool:
    """Whether every row proposes no more than was drafted for it, and nothing negative."""
    for row in range(neural_len.shape[0]):
        if not 0 <= neural_len[row] <= (count if holds[row] else 0) or ngram_len[row] < 0:
            return False
    return True


@compiled
def _trim(ngram_len: Ints, neural_len: Ints, available: Ints, cap: int) -> None:
    """Cut copied lengths to what there is to copy and to the cap."""
    for row in range(ngram_len.shape[0]):
        room = max(0, cap - neural_len[row])
        ngram_len[row] = min(ngram_len[row], available[row], room)
