"""Drives one engine by a policy, in every rank: asks host and device, tells observers of it.

A step of the engine calls, in this order:

    take_reports                in an async engine: what is known by now of earlier steps
    admit, end                  requests are let in, or have ended
    idle                        in a step in which nothing runs: who has ended is forgotten
    budget(running, most)       in an async engine, before the target runs: how much it verifies
    begin(rows, batch)          after it ran: how many tokens the drafter drafts
    finish(drafted, ..)         after that: the drafts
    proposed                    in a sync engine: what of them is verified next
    tell                        once the device has its work: all that it need not wait for
    length                      in an async engine: how long the next drafts are at most

A sync engine knows the outcome of a step as it begins to draft, and waits for the drafts. An async
one learns of both from a report, which is copied to the host and taken before the target runs for
the second time since: by then it is there, and no answer waits for drafting.

None of them raises: a failure is counted, and costs the step its drafts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec import structs
from numpy.typing import NDArray
from torch import Tensor

from adaspec.cost import ASYNC, SYNC
from adaspec.cost.load import cost_from_document
from adaspec.cost.model import CostModel
from adaspec.errors import ServingError
from adaspec.kernels.batch import Batch, Step, to_device
from adaspec.policy.artifact import GENERAL
from adaspec.policy.guard import BASE, HOLD, PLAN, PROBE, SPECULATING
from adaspec.policy.protocol import Ints, Setup, load_policy
from adaspec.policy.static import StaticPolicy
from adaspec.predict.model import LONGEST_NGRAM
from adaspec.vllm.choice import Serving, baseline_of, digest_of, named_policy, target_of
from adaspec.vllm.events import CircuitBreaker, DraftedStep, Observers, VerifiedStep
from adaspec.vllm.options import IN_ONE_PASS, Options
from adaspec.vllm.recorder import observers_of
from adaspec.vllm.session.decider import BatchDecider, RuleDecider, warm_up
from adaspec.vllm.session.drafting import Drafting
from adaspec.vllm.session.report import Copy, Drafts, Outcome, StepReport
from adaspec.vllm.session.requests import (
    Requests,
    Rows,
    RunningRequest,
    is_chosen,
    is_rehearsed,
    is_served,
)
from adaspec.vllm.session.ring import ServedRing
from adaspec.vllm.session.unread_blocks import UnreadBlocks

_MOST_MISSED_STEPS = 64
"""After more steps of a baseline that never runs the drafter, requests lose theirs."""


class _Drafted(NamedTuple):
    """A step that was drafted for, whose report may be on its way."""

    step: DraftedStep
    report: StepReport | Copy
    """On the whole batch."""
    forwards: int
    """How often the drafter ran."""


class Session:
    """One policy serving one rank of an engine."""

    def __init__(self, serving: Serving, device: torch.device, copy_stream: Any) -> None:
        policy, setup = serving.policy, serving.setup
        self._rule = policy.rule if isinstance(policy, StaticPolicy) else None
        # A rule is served by the same choice, which takes a policy's model.
        learned = load_policy(GENERAL) if isinstance(policy, StaticPolicy) else policy
        baseline = serving.options.baseline
        self._baseline = None if baseline is None else baseline_of(baseline).rule
        self.serving = serving
        self.observers = Observers()
        self.breaker = CircuitBreaker(serving.name, self.observers)
        warm_up(learned, setup)
        self._policy = learned
        self._make_deciders(setup)
        options = serving.options
        self.ring = ServedRing(options, serving.target) if options.ring_tokens else None
        """The tokens of ended answers, where they are searched."""
        vocabulary = serving.target.vocabulary
        rules = self._rule, self._baseline
        self.drafting = Drafting(learned, setup, vocabulary, device, self.ring, *rules)
        self.trims = setup.engine == SYNC
        """Whether drafts are trimmed to a budget: in an async engine, where `v2.attachment` finds
        that vLLM can. If not, all drafts are of one length."""
        self._device, self._copy_stream = device, copy_stream
        self.mode = serving.options.mode
        """The mode of the step that runs or begins next."""
        self.guard_state = PLAN
        """What the guard says of that step."""
        self.requests = Requests(setup.slots, vocabulary)
        self.unread: UnreadBlocks | None = None
        """What the drafter has not read of a prefix cache, if the engine has both."""
        self.drafter_ran = False
        """Whether it ran in the last step, which an engine that runs it says."""
        self._reads_prompts = False
        self._missed_steps = 0
        """How many steps of a baseline that never runs the drafter came one behind another."""
        self._untold: list[Callable[[], None]] = []
        self._holds = torch.zeros(setup.slots, dtype=torch.bool, device=device)
        self._current: tuple[DraftedStep, Step] | None = None
        self._drafted: _Drafted | None = None
        """The last step, if it was drafted for."""
        self._awaited: _Drafted | None = None
        """In an async engine, the one before, while the last one is prepared or runs."""
        self._awaiting_verdict: DraftedStep | None = None
        """A step whose report has come and whose drafts are being verified."""
        self._budget, self._cut_by_engine = 0, False
        self._allowed: Tensor | None = None

    @property
    def most_forwards(self) -> int:
        """The drafter never runs oftener in a step."""
        recorded = self.serving.record_cap if self.serving.options.densely_recorded else 0
        passes = self.serving.setup.passes(recorded)
        return max(passes, *(each.most_forwards for each in self._deciders))

    def take_costs(self, cost: CostModel) -> None:
        """Decide by these costs; nothing has been served so far."""
        setup = dataclasses.replace(self.serving.setup, cost=cost)
        self.serving = dataclasses.replace(self.serving, setup=setup)
        self._make_deciders(setup)

    def _make_deciders(self, setup: Setup) -> None:
        """The decisions of either arm, each of which remembers its own steps alone."""
        policy, rule, baseline = self._policy, self._rule, self._baseline
        self.decider = (
            BatchDecider(policy, setup) if rule is None else RuleDecider(policy, setup, rule)
        )
        self._of_baseline = None if baseline is None else RuleDecider(policy, setup, baseline)
        self._deciders = [each for each in (self.decider, self._of_baseline) if each is not None]

    def _decider(self, is_baseline: bool) -> BatchDecider:
        """Who decides for a step of that arm."""
        if is_baseline and self._of_baseline is not None:
            return self._of_baseline
        return self.decider

    @property
    def _misses_text(self) -> bool:
        """Whether the drafter reads nothing of this step: a probe, or a baseline without it."""
        if self.guard_state == BASE:
            return self._baseline is not None and self._baseline.neural_len == 0
        return self.guard_state == PROBE

    def _holds_drafter(self, running: int) -> bool:
        """Whether requests hold the neural drafter where so many run, because an arm wants it."""
        if self._missed_steps > _MOST_MISSED_STEPS:
            return False
        return any(each.holds_drafter(running) for each in self._deciders)

    @property
    def needs_keep_alive(self) -> bool:
        """Whether the drafter has to run, if only so that its KV has no holes."""
        if self.mode == "off" or self.breaker.off or self._misses_text:
            return False
        if self._reads_prompts and self.unread is not None and self.most_forwards:
            return True  # others may be served from these blocks
        return self.guard_state != HOLD and bool(self.requests.facts["holds_neural"].any())

    @property
    def length(self) -> int:
        """For how long drafts the coming steps shall make room."""
        if self.mode != "serve" or self.breaker.off:
            return 0
        return self._decider(self.guard_state == BASE).length(self.trims)

    def take_slowness(self, slowness: float) -> None:
        """Steps take so many times as long as the costs say, which matters to a bound on them."""
        for each in self._deciders:
            each.take_slowness(slowness)

    def follow_blocks(self, scheduled: Any) -> None:
        """Before a step runs: learn who is served from blocks that the drafter has not read."""
        ran, self.drafter_ran = self.drafter_ran, False
        try:
            if self.unread is not None:
                self.unread.follow(scheduled, ran)
        except Exception as error:
            self.unread = None
            self.breaker.note("batch", error)

    def admit(self, request: RunningRequest) -> None:
        """A request is let in, or once more after it was preempted: then its text is known anew."""
        if self.unread is not None:
            request.drafter_has_holes = request.name in self.unread.behind
        if self.requests.has_ended(request.name):  # another one of that name
            self._forget_ended()
        if self.requests.readmit(request):
            return
        options = self.serving.options
        try:
            request.is_served = is_served(request.name, request.params, options.serve_fraction)
        except Exception as error:
            # The API server refuses such arguments, but not every request comes through it.
            self.breaker.note("request", error)
        chosen = is_chosen(request.name, options.densely_recorded)
        request.recorded = request.is_served and chosen
        self.requests.add(request)
        self.observers.notify("admitted", request)

    def end(self, names: Sequence[str]) -> None:
        """These requests have ended, though reports of their last steps may still come."""
        self.requests.end(names)

    def rehearse(self, names: Iterable[str]) -> None:
        """Whether these requests of a step are vLLM's own, by which it warms up as it starts.

        Nobody is told of them, and nothing is remembered of them.
        """
        before, self.observers.muted = self.observers.muted, any(map(is_rehearsed, names))
        if before and not self.observers.muted:
            self._make_deciders(self.serving.setup)
            self._drafted = self._awaited = self._awaiting_verdict = None

    def take_reports(self) -> None:
        """Before the target runs: learn of the step before the last, and forget who had ended.

        The drafts of the last step may still be on their way, and are verified by the coming one.
        """
        awaited, self._awaited, self._drafted = self._awaited, self._drafted, None
        try:
            self._take(awaited)
            self._forget_ended()
        except Exception as error:
            self._fault("plan", error)

    def budget(self, running: int, most: int, reading: int = 0) -> int:
        """How many drafted tokens the coming step verifies, of at most so many.

        It runs so many rows with drafts, and on `reading` tokens besides.
        """
        self._budget, self._cut_by_engine = 0, False
        if self._decides and self._awaited is not None and running:
            try:
                wanted = self._decider(self.guard_state == BASE).budget(running, reading)
                self._budget = min(wanted, most)
                self._cut_by_engine = self._budget < wanted
            except Exception as error:
                self.breaker.fault("plan", error)
        return self._budget

    @property
    def _decides(self) -> bool:
        """Whether it is decided what is verified."""
        return self.mode == "serve" and self.guard_state in SPECULATING and not self.breaker.off

    def begin(self, rows: Rows, make_batch: Callable[[Tensor], Batch]) -> int:
        """How many tokens the drafter is to draft for each of these rows.

        `make_batch` makes the device's view of the batch, given who holds the drafter.
        """
        self._current, self._reads_prompts = None, bool(rows.reads.any())
        if not self.trims:
            self._budget = int(rows.verified.sum())
        began_s = perf_counter()
        try:
            if rows.outcome is not None or self.breaker.off:
                self._forget_ended()
            if self.breaker.off:
                return 0
            if self.mode == "off" or self.guard_state == HOLD:
                self._take_all()
                self._awaiting_verdict = None
                self.requests.stop_drafting(rows)
                return 0
            pending = self._decide(rows)
            if self.guard_state not in SPECULATING:
                # A probe copies nothing that is verified in it, and misses so few tokens that
                # requests keep the drafter. It is decided all the same: reports stay whole.
                pending.forwards = 0
            settings = to_device(pending.settings, self._device)
            step = self.drafting.begin(make_batch(self._holds), settings)
        except Exception as error:
            self._fault("plan", error)
            return 0
        pending.decision_s = perf_counter() - began_s
        self._current = pending, step
        if pending.recorded.any():
            return max(pending.forwards, self.serving.record_cap)
        return pending.forwards

    def skip(self, error: Exception) -> None:
        """Begin a step whose batch could not be read; nothing is drafted in it."""
        self._fault("batch", error)

    def finish(self, drafted: Tensor, confidences: Tensor) -> Drafts | None:
        """The drafts of the step that began, given the drafter's (rows, forwards) tokens."""
        current, self._current = self._current, None
        if current is None:
            return None
        began_s = perf_counter()
        pending, step = current
        runs = drafted.shape[1]
        used = pending.forwards = min(pending.forwards, runs)
        try:
            self.drafting.revise(step, drafted[:, :used], confidences[:used])
            drafts = self.drafting.finish(
                step, drafted, confidences, self._allowed, pending.is_baseline
            )
            made = drafts.report
            report = made if isinstance(made, StepReport) else Copy(made, self._copy_stream)
        except Exception as error:
            self._fault("settle", error)
            return None
        self._drafted = _Drafted(pending, report, runs)
        pending.decision_s += perf_counter() - began_s
        keep_alive = int(runs == 0 and self.drafter_ran)
        self._untold.append(partial(self._close, self.serving.setup.passes(runs), keep_alive))
        return drafts

    def proposed(self, rows: int) -> list[list[int]]:
        """The drafts of the step that was finished, for so many rows of its batch."""
        proposed: list[list[int]] = [[] for _ in range(rows)]
        drafted, self._drafted = self._drafted, None
        if drafted is None:
            return proposed
        pending = drafted.step
        try:
            self._read(drafted)
            began_s = perf_counter()
            if self._decides:
                self._decider(pending.is_baseline).take_likeliest(pending)
            else:
                pending.verified = np.zeros_like(pending.drafts.offered)
            for at, tokens in zip(pending.rows.tolist(), pending.proposed, strict=True):
                proposed[at] = list(tokens)  # vLLM's own, while others read these
        except Exception as error:
            self._fault("settle", error)
            return [[] for _ in proposed]
        pending.decision_s += perf_counter() - began_s
        self._awaiting_verdict = pending
        self._untold.append(partial(self.observers.notify, "proposed", pending))
        return proposed

    def idle(self) -> None:
        """In a step in which nothing runs: if all have ended, forget them, as none may follow."""
        if self.requests.any_runs:
            return
        self.budget(0, 0)
        try:
            self._take_all()
            self._forget_ended(are_cut=self.serving.options.mode == "record")
        except Exception as error:
            self._fault("plan", error)
        self.tell()

    def tell(self) -> None:
        """Tell observers of this step, keep its text, and let the ring take what has ended."""
        untold, self._untold = self._untold, []
        for each in untold:
            try:
                each()
            except Exception as error:
                self.breaker.fault("plan", error, proposals_stand=True)

    def _close(self, runs: int, keep_alive: int) -> None:
        """Tell of the drafter, and count the step as one that succeeded."""
        self.observers.notify("forwards", runs, keep_alive)
        self.breaker.step_succeeded()

    def _decide(self, rows: Rows) -> DraftedStep:
        """Give requests their slots, and decide what is decided for the batch."""
        requests = self.requests
        is_baseline, misses = self.guard_state == BASE, self._misses_text
        self._missed_steps = self._missed_steps + 1 if is_baseline and misses else 0
        changed = requests.drop_drafter_where_read(rows) if misses else False
        changed |= self._enter(rows)
        chosen = np.flatnonzero(rows.samples).astype(np.int32)
        slots = rows.slots[chosen].astype(np.int32)
        facts = requests.facts[slots]
        holds, recorded = facts["holds_neural"], facts["recorded"]
        pending = DraftedStep(
            slots=slots,
            prompt_tokens=rows.prompt_tokens[chosen],
            holds_neural=holds,
            running=requests.in_slot[slots],
            rows=chosen,
            recorded=recorded,
            is_baseline=is_baseline,
        )
        if rows.outcome is not None:
            self._take_outcome(pending, Outcome(*(each[chosen] for each in rows.outcome)))
        context = int(rows.context_tokens[chosen].sum())
        if holds.any() and not self._holds_drafter(len(chosen)):
            requests.facts["holds_neural"] &= requests.facts["recorded"]
            pending.holds_neural, changed = holds & recorded, True
        if changed:
            self._holds = to_device(requests.facts["holds_neural"].copy(), self._device)
        self._allowed, allowed = None, requests.allowed(rows, self.serving.setup.cap)
        if allowed is not None:
            self._allowed = to_device(allowed, self._device)
        return self._decider(is_baseline).decide(pending, context)

    def _enter(self, rows: Rows) -> bool:
        """Give slots to requests that are in a batch for the first time; whether there are any."""
        # If this fails, nobody has entered: they do in the next step.
        pays = self._holds_drafter(max(int(np.count_nonzero(rows.samples)), 1))
        entered = self.requests.enter(rows)
        for request in entered:
            holds = pays and request.is_served and not request.drafter_has_holes
            holds |= request.recorded and self.serving.record_cap > 0
            self.requests.facts["holds_neural"][request.slot] = holds
        if entered:
            slots = np.array([each.slot for each in entered], np.int32)
            self.drafting.enter(slots, np.array([each.in_ring for each in entered], np.bool_))
        return bool(entered)

    def _forget_ended(self, are_cut: bool = False) -> None:
        """Forget the requests that have ended, now that all reports of them have come.

        `are_cut`: those that did not end by themselves were ended by an engine that stops.
        """
        left = self.requests.forget_ended()
        if left:
            self._untold.append(partial(self._let_go, left, are_cut))

    def _let_go(self, left: Sequence[RunningRequest], are_cut: bool) -> None:
        """Say who has left, and let the ring take their answers; one that fails is given up."""
        # What becomes of those that are cut, a recorder knows.
        names = [request.name for request in left if not are_cut or request.is_whole]
        if names:
            self.observers.notify("left", names)
        if self.ring is None or self.breaker.off:
            return
        try:
            self.ring.take(
                [each.output for each in left if each.in_ring and not is_rehearsed(each.name)]
            )
        except Exception as error:
            self.ring.give_up()
            self.ring = None
            self.breaker.note("ring", error)

    def _read(self, drafted: _Drafted) -> None:
        """Wait for what came of drafting, of the rows of the step."""
        pending, report = drafted.step, drafted.report
        if isinstance(report, StepReport):
            pending.report = report.of(pending.rows)
        else:
            rows = report.wait()[pending.rows]
            pending.report = self.drafting.layout.unpacked(rows, drafted.forwards)

    def _take_all(self) -> None:
        """Learn of all steps that were drafted for, though the last may have to be waited for."""
        awaited, drafted = self._awaited, self._drafted
        self._awaited = self._drafted = None
        self._take(awaited)
        self._take(drafted)

    def _take(self, drafted: _Drafted | None) -> None:
        """Learn what a step emitted, and note what it drafted: its budget is now known."""
        if drafted is None or self.breaker.off:
            return
        self._read(drafted)
        began_s, pending = perf_counter(), drafted.step  # waiting for the device is no deciding
        pending.budget, pending.cut_by_engine = self._budget, self._cut_by_engine
        self._decider(pending.is_baseline).note(pending, self.trims)
        self._budget = 0
        self._take_outcome(pending, pending.drafts)
        self._awaiting_verdict = pending
        pending.decision_s += perf_counter() - began_s
        self._untold.append(partial(self.observers.notify, "proposed", pending))

    def _take_outcome(self, pending: DraftedStep, outcome: Outcome | StepReport) -> None:
        """Learn what the target made of the drafts before a step."""
        before, self._awaiting_verdict = self._awaiting_verdict, None
        pending.outcome = outcome
        pending.ended, missing, kept = self.requests.count_tokens(
            pending.slots, pending.running, outcome
        )
        self._untold.append(
            partial(self._keep_text, pending.running, missing, kept, outcome.emitted)
        )
        if before is not None:
            verified = self._verified(before, pending)
            self._decider(before.is_baseline).learn(verified)
            self._untold.append(partial(self.observers.notify, "verified", verified))

    def _verified(self, before: DraftedStep, after: DraftedStep) -> VerifiedStep:
        """What became of a step's drafts, which the next step's report says."""
        drafts, outcome = before.drafts, after.outcome
        assert outcome is not None and after.ended is not None
        row_of = {request: row for row, request in enumerate(after.running.tolist())}
        rows = np.array([row_of.get(each, -1) for each in before.running.tolist()], np.int64)

        def of_each(values: NDArray[Any]) -> NDArray[Any]:
            """The values of the same requests; 0 of those that the next step does not have."""
            return np.append(values, np.zeros(1, values.dtype))[rows]

        sampled = of_each(outcome.sampled)
        known = (sampled > 0) & (drafts.context == of_each(outcome.context) - sampled)
        known &= ~of_each(after.ended)
        verified = np.where(known, sampled - 1 + of_each(outcome.rejected), 0)
        drafted = np.minimum(verified, drafts.offered).astype(np.int32)
        return VerifiedStep(
            step=before,
            known=known,
            drafted=drafted,
            neural_drafted=np.minimum(drafted, drafts.neural).astype(np.int32),
            accepted=np.where(known, np.minimum(sampled - 1, drafted), 0).astype(np.int32),
            emitted_tokens=np.where(known, sampled, 0).astype(np.int32),
        )

    def _keep_text(self, requests: NDArray[Any], missing: Ints, kept: Ints, emitted: Ints) -> None:
        """Add what a step emitted to the outputs; where tokens are missing, nothing is written."""
        columns = (each.tolist() for each in (requests, missing, kept, emitted))
        for request, lost, count, tokens in zip(*columns, strict=True):
            if lost:
                # What follows is written down by nobody.
                request.output += [-1] * lost
                self.observers.notify("left", [request.name])
            request.output += tokens[:count]

    def _fault(self, stage: str, error: Exception) -> None:
        self._current = self._drafted = self._awaited = self._awaiting_verdict = None
        self.tell()  # what came before it
        self.breaker.fault(stage, error)


def session_of(config: Any, options: Options, device: torch.device, copy_stream: Any) -> Session:
    """The session that serves the requests of one rank; that of the first rank is observed."""
    parallel = config.parallel_config
    if options.replica is not None:
        # vLLM tells each engine of a dense model that it is alone, and leaves only an index behind.
        options = structs.replace(options, replica=int(parallel.data_parallel_index))
    target = target_of(config.model_config, options.vocabulary_hash)
    slots = config.scheduler_config.max_num_seqs
    assert options.policy is not None
    policy = named_policy(options.policy)
    if options.policy_digest not in (None, digest_of(options.policy)):
        # Ranks with different policies would wait for each other forever.
        raise ServingError(
            f"policy '{options.policy}' changed while the server was starting: start it again, now "
            "that its folder is as it should be"
        )
    serving = Serving(policy, options, setup_of(options, slots), target)
    session = Session(serving, device, copy_stream)
    if parallel.rank == 0:
        session.observers.add(*observers_of(serving))
    return session


def setup_of(options: Options, slots: int) -> Setup:
    """What holds for decisions on so many requests at once."""
    assert options.num_speculative_tokens is not None and options.costs is not None
    is_async, has_head = options.runner == "V2", options.model is not None
    cap = options.num_speculative_tokens
    if not is_async:  # as many tokens are scheduled on V2 as vLLM is told
        cap = min(cap, LONGEST_NGRAM)  # no curve reaches further
    return Setup(
        cost=cost_from_document(options.costs, "costs"),
        cap=cap,
        neural_cap=cap if has_head else 0,
        slots=slots,
        shows_tokens=has_head,
        shows_confidences=has_head,
        engine=ASYNC if is_async else SYNC,
        longest_s=None if options.max_step_ms is None else options.max_step_ms / 1e3,
        in_one_pass=options.draft_method in IN_ONE_PASS,
    )
