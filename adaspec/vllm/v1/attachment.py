"""Puts a session into vLLM's model runner V1 when the runner is created."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from adaspec.policy.protocol import Ints
from adaspec.vllm.compatibility import FUNCTIONS_V1, check_functions
from adaspec.vllm.options import Options
from adaspec.vllm.scheduler import follow
from adaspec.vllm.serving import session_of
from adaspec.vllm.session.report import Outcome
from adaspec.vllm.session.requests import Rows, RunningRequest, shares_ring
from adaspec.vllm.session.session import Session
from adaspec.vllm.session.unread_blocks import unread_blocks
from adaspec.vllm.v1.proposers import HeadMixin, NgramDrafter, Turn
from adaspec.vllm.v1.texts import Texts
from adaspec.vllm.workarounds import draft_to_the_end, fix_expansion, fix_undrafted_steps

UNLIMITED = 1 << 30


def attach(runner: Any, options: Options) -> None:
    """Make the runner's drafter follow the policy that the options name."""
    drafter = getattr(runner, "drafter", None)
    if drafter is None:
        return
    is_neural = not isinstance(drafter, NgramDrafter)
    check_functions(FUNCTIONS_V1)
    fix_expansion()
    fix_undrafted_steps()
    limit = draft_to_the_end(runner)
    session = session_of(runner.vllm_config, options, torch.device("cpu"), None)
    warm_up(session)
    runner.adaspec_session = session
    if is_neural:
        base = type(drafter)
        drafter.__class__ = type(f"AdaSpec{base.__name__}", (HeadMixin, base), {})
        drafter.adaspec_limit = limit
        drafter.adaspec_most = session.serving.setup.neural_cap
    hooks = Hooks(runner)
    runner.propose_draft_token_ids = hooks.propose
    runner.execute_model = hooks.execute
    runner.initialize_kv_cache = hooks.initialize


def warm_up(session: Session) -> None:
    """Compile what the session's steps run, so that no request waits for it."""
    slots, none = session.serving.setup.slots, np.zeros(0, np.int32)
    holds, nothing = torch.zeros(slots, dtype=torch.bool), Outcome(none, none, none, none)
    session.drafting.warm_up(Texts(slots, 1).batch(none.astype(np.int64), holds, nothing))


class Hooks:
    """What a runner calls in every step, and what is known of its requests in between."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._execute, self._propose = runner.execute_model, runner.propose_draft_token_ids
        self._initialize = runner.initialize_kv_cache
        self._texts = Texts(runner.scheduler_config.max_num_seqs, runner.max_model_len)
        self._in_ring: set[str] = set()
        """The requests that share the ring."""
        self._resumed: set[str] = set()
        """The requests of which the step reads all text again."""
        self._sampled: set[str] = set()
        """The requests that sampled a token in the last step: all of their text had been read."""

    def initialize(self, *args: Any, **kwargs: Any) -> Any:
        """`initialize_kv_cache`, whose blocks the session follows."""
        result, runner = self._initialize(*args, **kwargs), self._runner
        if isinstance(runner.drafter, HeadMixin):
            runner.adaspec_session.unread = unread_blocks(
                runner.vllm_config.cache_config, runner.kv_cache_config, slack=0
            )
        return result

    def execute(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """See which requests come and go, then `execute_model`."""
        session: Session = self._runner.adaspec_session
        for new in scheduler_output.scheduled_new_reqs:
            if shares_ring(new):
                self._in_ring.add(new.req_id)
        self._resumed = set(scheduler_output.scheduled_cached_reqs.resumed_req_ids)
        gone = sorted(scheduler_output.finished_req_ids)
        self._texts.leave([*gone, *(scheduler_output.preempted_req_ids or ())])
        self._in_ring.difference_update(gone)
        session.end(gone)
        session.follow_blocks(scheduler_output)
        result = self._execute(scheduler_output, *args, **kwargs)
        if not scheduler_output.total_num_scheduled_tokens:
            session.idle()
        return result

    def propose(
        self, scheduler_output: Any, sampled_token_ids: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """`propose_draft_token_ids`, as a step of the session."""
        runner = self._runner
        session: Session = runner.adaspec_session
        follow(session, scheduler_output)
        count, forwards = runner.input_batch.num_reqs, 0
        try:
            rows, outcome = self._rows(session, scheduler_output, sampled_token_ids)
        except Exception as error:
            session.skip(error)
        else:
            forwards = session.begin(
                rows, lambda holds: self._texts.batch(rows.slots, holds, outcome)
            )
        runner.drafter.adaspec = Turn(session, count, forwards)
        try:
            return self._propose(scheduler_output, sampled_token_ids, *args, **kwargs)
        finally:
            runner.drafter.adaspec = None
            session.tell()

    def _rows(
        self, session: Session, scheduled: Any, sampled_token_ids: Any
    ) -> tuple[Rows, Outcome]:
        """The runner's batch as the session knows it; who is in it for the first time arrives."""
        runner, batch = self._runner, self._runner.input_batch
        count = batch.num_reqs
        requests = list(batch.req_ids[:count])
        known = np.array(batch.num_tokens_no_spec[:count], np.int32)
        if isinstance(sampled_token_ids, list):
            sampled: Sequence[Sequence[int]] = sampled_token_ids
            # vLLM has done its bookkeeping: the batch's text already ends with these tokens.
            known -= np.array([len(tokens) for tokens in sampled], np.int32)
        else:
            sampled = _on_host(runner, sampled_token_ids, count)
        prompts = np.array(batch.num_prompt_tokens[:count], np.int32)
        for row, name in enumerate(requests):
            if name in self._resumed or not session.requests.runs(name):
                session.admit(self._request(name, row, int(prompts[row]), int(known[row])))
        before, self._sampled = (
            self._sampled,
            {name for name, tokens in zip(requests, sampled, strict=True) if len(tokens)},
        )
        drafts = scheduled.scheduled_spec_decode_tokens
        verified = np.array([len(drafts.get(name, ())) for name in requests], np.int32)
        outcome = outcome_of(known, sampled, verified)
        slots = self._texts.slots_of(requests)
        self._texts.write(slots, prompts, batch.token_ids_cpu, outcome)
        states = [runner.requests[name] for name in requests]
        rows = Rows(
            requests=requests,
            slots=slots,
            prompt_tokens=prompts,
            context_tokens=outcome.context,
            samples=outcome.sampled > 0,
            reads=np.array([name not in before for name in requests], np.bool_),
            verified=verified,
            outcome=outcome,
            room=room_of(states, outcome.context - prompts),
        )
        return rows, outcome

    def _request(self, name: str, row: int, prompt_tokens: int, known: int) -> RunningRequest:
        text = self._runner.input_batch.token_ids_cpu[row]
        params, in_ring = self._runner.requests[name].sampling_params, name in self._in_ring
        prompt, output = text[:prompt_tokens].copy(), text[prompt_tokens:known].tolist()
        return RunningRequest(name, prompt, output, params, in_ring, self._runner.max_model_len)


def outcome_of(known: Ints, sampled: Sequence[Sequence[int]], verified: Ints) -> Outcome:
    """What came of a step, given what was known before it, and what it verified."""
    counts = np.array([len(tokens) for tokens in sampled], np.int32)
    emitted = np.full((len(counts), max(counts.max(initial=0), 1)), -1, np.int32)
    for row, tokens in enumerate(sampled):
        emitted[row, : len(tokens)] = tokens
    rejected = np.where(counts > 0, np.maximum(verified - counts + 1, 0), 0)
    return Outcome(known + counts, counts, rejected.astype(np.int32), emitted)


def room_of(states: Sequence[Any], output_tokens: Ints) -> Ints | None:
    """The most tokens that each request's draft may have; None if no request limits it.

    vLLM forbids stop tokens until a request has `min_tokens` output tokens. It judges the token
    after a draft as though the draft were not there, so a draft must end before that length.
    """
    room = [UNLIMITED] * len(states)
    for row, (state, output) in enumerate(zip(states, output_tokens.tolist(), strict=True)):
        params = state.sampling_params
        if params is not None and params.min_tokens > output and params.all_stop_token_ids:
            room[row] = max(params.min_tokens - 1 - output, 0)
    return np.array(room, np.int32) if min(room, default=UNLIMITED) < UNLIMITED else None


def _on_host(runner: Any, sampled: Any, count: int) -> list[list[int]]:
    """The valid sampled tokens per row, for drafters that run before vLLM's bookkeeping."""
    host = sampled.cpu().numpy()
    vocabulary = runner.input_batch.vocab_size
    valid = (host >= 0) & (host < vocabulary)
    unfinished = runner.discard_request_mask.np[:count]
    return [[] if unfinished[row] else host[row, valid[row]].tolist() for row in range(count)]
