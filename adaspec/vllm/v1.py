"""Puts a session into vLLM's model runner V1, and drafters in the place of vLLM's proposers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaspec.kernels.batch import Batch
from adaspec.policy.protocol import Ints
from adaspec.trace.schema import CONFIDENCES
from adaspec.vllm.compatibility import FUNCTIONS_V1, check_functions
from adaspec.vllm.options import Options
from adaspec.vllm.patching import wrap
from adaspec.vllm.scheduler import follow
from adaspec.vllm.session.drafting import read_logits
from adaspec.vllm.session.report import Outcome
from adaspec.vllm.session.requests import Rows, RunningRequest, shares_ring
from adaspec.vllm.session.session import Session, session_of
from adaspec.vllm.session.unread_blocks import unread_blocks

UNLIMITED = 1 << 30


class NgramDrafter:
    """Stands where vLLM's `custom_class` method has a drafter: only the session copies text."""

    num_speculative_tokens = 0
    """How often vLLM's dummy steps run it."""

    def __init__(self, vllm_config: Any) -> None:
        pass

    def load_model(self, target: Any) -> None:
        """Do nothing: there is no head."""

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        """An empty draft for every row."""
        return [[] for _ in sampled_token_ids]


class HeadMixin:
    """Makes a neural drafter follow the session; its class has this as its first base."""

    adaspec_limit: int
    """The first position beyond what the drafter was made for."""
    adaspec_forwards: int
    """How many tokens it drafts in this step; at 0 it only keeps its KV complete."""
    adaspec_evidence: list[Tensor] | None
    """What `read_logits` says of each forward of this step; None where the head did not run."""

    def load_model(self, target_model: Any, *args: Any, **kwargs: Any) -> None:
        """Load as vLLM does, then use the target's layers without adapters.

        With LoRA, the embedding that a head borrows is wrapped, and the wrapper expects as many
        tokens as the target has. A draft has fewer, which fails on CPU; elsewhere, a row gets
        another row's adapter.
        """
        super().load_model(target_model, *args, **kwargs)  # type: ignore[misc]
        for parent in {*self.model.modules()} - {*target_model.modules()}:  # type: ignore[attr-defined]
            for name, child in [*parent.named_children()]:
                if type(child).__module__.startswith("vllm.lora."):
                    setattr(parent, name, child.base_layer)

    def propose(self, *args: Any, **kwargs: Any) -> None:
        """Run as often as the session says; the drafter's KV stays complete."""
        forwards, cap = self.adaspec_forwards, self.num_speculative_tokens  # type: ignore[has-type]
        furthest = kwargs["common_attn_metadata"].max_seq_len + cap
        # A draft model has no positions beyond its limit. If it cannot run, its KV is not kept up
        # either, as in vLLM itself.
        if self.needs_extra_input_slots and furthest > self.adaspec_limit:  # type: ignore[attr-defined]
            return
        self.adaspec_evidence = []
        kwargs["num_speculative_tokens"] = forwards
        if self.adaspec_limit < self.max_model_len:  # type: ignore[attr-defined]
            # Rows beyond a head's rotary table just draft badly.
            last = max(0, self.adaspec_limit - 1 - forwards)
            kwargs["target_positions"] = kwargs["target_positions"].clamp(max=last)
        super().propose(*args, **kwargs)  # type: ignore[misc]
        self.num_speculative_tokens = cap

    def prepare_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """As vLLM does, but with two tensors of lengths: each further forward adds one to both.

        On CPU, vLLM makes one tensor of the two, so every forward would add two to it. The drafter
        would read what was never written, and beyond the longest length past its block table.
        """
        metadata, token_indices = super().prepare_inputs(*args, **kwargs)  # type: ignore[misc]
        metadata.seq_lens = metadata.seq_lens.clone()
        return metadata, token_indices

    def _sample_draft_tokens(self, hidden_states: Tensor, _: Any) -> tuple[Tensor, None]:
        """Choose greedily, as vLLM does, and keep what the logits say."""
        tokens, evidence = read_logits(self.model.compute_logits(hidden_states))  # type: ignore[attr-defined]
        assert self.adaspec_evidence is not None
        self.adaspec_evidence.append(evidence)
        return tokens, None


def attach(runner: Any, options: Options) -> None:
    """Make the runner's drafter follow the policy that the options name."""
    check_functions(FUNCTIONS_V1)
    fix_rejection_sampler()
    session = session_of(runner.vllm_config, options, torch.device("cpu"), None)
    warm_up(session)
    runner.adaspec_session = session
    drafter = runner.drafter
    if not isinstance(drafter, NgramDrafter):
        base = type(drafter)
        drafter.__class__ = type(f"AdaSpec{base.__name__}", (HeadMixin, base), {})
        drafter.adaspec_limit = runner.effective_drafter_max_model_len
    # vLLM would stop drafting for all requests where one comes within CAP of the end. Here the
    # scheduler cuts each request's draft, and the drafter deals with positions beyond its limit.
    runner.effective_drafter_max_model_len = UNLIMITED
    hooks = Hooks(runner)
    runner.propose_draft_token_ids = hooks.propose
    runner.execute_model = hooks.execute
    runner.initialize_kv_cache = hooks.initialize


def fix_rejection_sampler() -> None:
    """Let vLLM's rejection sampler work without Triton, on a CPU.

    `expand_batch_to_tokens` writes to a copy of any output that does not have 64-bit integers, and
    drops the copy. If a draft is verified and any row samples, the logits of all rows are then
    divided by uninitialised memory. And a step that verifies no draft while a row samples by top-k
    ends the engine: `apply_sampling_constraints` takes the largest top-k of no tokens.
    """
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler

    def expand(
        _: Any, x: Any, ends: Any, count: int, replace_from: int = 0, replace_to: int = 0
    ) -> Any:
        replaced = torch.where(x == replace_from, replace_to, x).to(x.dtype)
        counts = torch.diff(ends, prepend=ends.new_zeros(1))
        return replaced.repeat_interleave(counts, output_size=count)

    def constrain(original: Any, logits: Any, *args: Any, **kwargs: Any) -> Any:
        return original(logits, *args, **kwargs) if logits.shape[0] else logits

    if current_platform.is_cpu():
        wrap(rejection_sampler, "expand_batch_to_tokens", expand)
        wrap(rejection_sampler, "apply_sampling_constraints", constrain)


def warm_up(session: Session) -> None:
    """Compile what the session's steps run, so that no request waits for it."""
    slots, none = session.serving.setup.slots, np.zeros(0, np.int32)
    holds, nothing = torch.zeros(slots, dtype=torch.bool), Outcome(none, none, none, none)
    session.drafting.warm_up(Texts(slots, 1).batch(none.astype(np.int64), holds, nothing))


class Hooks:
    """What a runner calls as it starts, and in every step."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._execute, self._propose = runner.execute_model, runner.propose_draft_token_ids
        self._initialize = runner.initialize_kv_cache
        self._texts = Texts(runner.scheduler_config.max_num_seqs, runner.max_model_len)

    def initialize(self, *args: Any, **kwargs: Any) -> Any:
        """`initialize_kv_cache`, whose blocks the session follows."""
        result, runner = self._initialize(*args, **kwargs), self._runner
        if isinstance(runner.drafter, HeadMixin):
            runner.adaspec_session.unread = unread_blocks(
                runner.vllm_config.cache_config, runner.kv_cache_config, slack=0
            )
        return result

    def execute(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """See which requests come and go around `execute_model`, which makes the batch."""
        session: Session = self._runner.adaspec_session
        gone = sorted(scheduler_output.finished_req_ids)
        self._texts.leave([*gone, *(scheduler_output.preempted_req_ids or ())])
        session.end(gone)
        session.follow_blocks(scheduler_output)
        result = self._execute(scheduler_output, *args, **kwargs)
        in_ring = {new.req_id: shares_ring(new) for new in scheduler_output.scheduled_new_reqs}
        for name in (*in_ring, *scheduler_output.scheduled_cached_reqs.resumed_req_ids):
            session.admit(self._request(name, in_ring.get(name, False)))
        if not scheduler_output.total_num_scheduled_tokens:
            session.idle()
        return result

    def _request(self, name: str, in_ring: bool) -> RunningRequest:
        runner, batch = self._runner, self._runner.input_batch
        row = batch.req_id_to_index[name]
        prompt_tokens, text = batch.num_prompt_tokens[row], batch.token_ids_cpu[row]
        output = text[prompt_tokens : batch.num_tokens_no_spec[row]].tolist()
        params, longest = runner.requests[name].sampling_params, runner.max_model_len
        return RunningRequest(name, text[:prompt_tokens].copy(), output, params, in_ring, longest)

    def propose(
        self, scheduler_output: Any, sampled_token_ids: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """`propose_draft_token_ids`, as a step of the session; vLLM's own only runs the head."""
        runner, drafter = self._runner, self._runner.drafter
        session: Session = runner.adaspec_session
        follow(session, scheduler_output)
        count, forwards = runner.input_batch.num_reqs, 0
        try:
            rows, outcome = self._rows(scheduler_output, sampled_token_ids)
        except Exception as error:
            session.skip(error)
        else:
            forwards = session.begin(
                rows, lambda holds: self._texts.batch(rows.slots, holds, outcome)
            )
        read = torch.zeros((0, count, 1 + len(CONFIDENCES)))
        if isinstance(drafter, HeadMixin) and (forwards or session.needs_keep_alive):
            drafter.adaspec_forwards, drafter.adaspec_evidence = forwards, None
            self._propose(scheduler_output, sampled_token_ids, *args, **kwargs)
            session.drafter_ran = drafter.adaspec_evidence is not None
            if drafter.adaspec_evidence:
                read = torch.stack(drafter.adaspec_evidence).cpu()
        session.finish(read[:, :, 0].T.to(torch.int64), read[:, :, 1:].contiguous())
        proposed = session.proposed(count)
        session.tell()
        return proposed

    def _rows(self, scheduled: Any, sampled_token_ids: Any) -> tuple[Rows, Outcome]:
        """The runner's batch as the session knows it."""
        runner, batch = self._runner, self._runner.input_batch
        count = batch.num_reqs
        requests = list(batch.req_ids[:count])
        prompts = np.array(batch.num_prompt_tokens[:count], np.int32)
        known = np.array(batch.num_tokens_no_spec[:count], np.int32)
        if isinstance(sampled_token_ids, list):
            sampled: Sequence[Sequence[int]] = sampled_token_ids
            # vLLM has done its bookkeeping: the batch's text already ends with these tokens.
            known -= np.array([len(tokens) for tokens in sampled], np.int32)
        else:
            host = sampled_token_ids.cpu().numpy()
            valid = (host >= 0) & (host < batch.vocab_size)
            valid &= ~runner.discard_request_mask.np[:count, None]
            sampled = [tokens[kept].tolist() for tokens, kept in zip(host, valid, strict=True)]
        drafts = scheduled.scheduled_spec_decode_tokens
        verified = np.array([len(drafts.get(name, ())) for name in requests], np.int32)
        outcome = outcome_of(known, sampled, verified)
        slots = self._texts.slots_of(requests)
        self._texts.write(slots, prompts, batch.token_ids_cpu, outcome)
        params = [runner.requests[name].sampling_params for name in requests]
        written = (outcome.context - prompts).tolist()
        rows = Rows(
            requests=requests,
            slots=slots,
            prompt_tokens=prompts,
            context_tokens=outcome.context,
            samples=outcome.sampled > 0,
            # One token of known text is read in every step.
            reads=batch.num_computed_tokens_cpu[:count] < np.maximum(prompts, known - 1),
            verified=verified,
            outcome=outcome,
            room=np.array([*map(room_of, params, written)], np.int32),
        )
        return rows, outcome


def outcome_of(known: Ints, sampled: Sequence[Sequence[int]], verified: Ints) -> Outcome:
    """What came of a step, given what was known before it, and what it verified."""
    counts = np.array([len(tokens) for tokens in sampled], np.int32)
    emitted = np.full((len(counts), max(counts.max(initial=0), 1)), -1, np.int32)
    for row, tokens in enumerate(sampled):
        emitted[row, : len(tokens)] = tokens
    rejected = np.where(counts > 0, np.maximum(verified - counts + 1, 0), 0)
    return Outcome(known + counts, counts, rejected.astype(np.int32), emitted)


def room_of(params: Any, output_tokens: int) -> int:
    """The most tokens that the draft of a request with these sampling parameters may have.

    vLLM forbids stop tokens until a request has `min_tokens` output tokens. It judges the token
    after a draft as though the draft were not there, so a draft must end before that length.
    """
    if params.min_tokens <= output_tokens or not params.all_stop_token_ids:
        return UNLIMITED
    return max(int(params.min_tokens) - 1 - output_tokens, 0)


class Texts:
    """The texts of requests, each in a slot of its own as long as the request may run.

    vLLM moves a request's row as others leave; what is remembered of a request stays in its slot.
    """

    def __init__(self, slots: int, longest: int) -> None:
        self.tokens = np.zeros((slots, longest), np.int32)
        self.context_tokens = np.zeros(slots, np.int32)
        self.prompt_tokens = np.zeros(slots, np.int32)
        self._slots: dict[str, int] = {}
        self._free = list(range(slots))

    def leave(self, requests: Iterable[str]) -> None:
        """Free the slots of these requests, as far as they have any."""
        self._free += [self._slots.pop(name) for name in requests if name in self._slots]

    def slots_of(self, requests: Sequence[str]) -> NDArray[np.int64]:
        """The slots of a batch's requests; those that had none get one.

        Where none is free, those that are not in the batch lose theirs.
        """
        entering = [name for name in requests if name not in self._slots]
        if len(entering) > len(self._free):
            self.leave(self._slots.keys() - set(requests))
        for name in entering:
            self._slots[name] = slot = self._free.pop()
            self.context_tokens[slot] = 0
        return np.array([self._slots[name] for name in requests], np.int64)

    def write(self, slots: NDArray[np.int64], prompts: Ints, rows: Ints, outcome: Outcome) -> None:
        """Take in each row's text, which `rows` has but for what the step emitted."""
        before = outcome.context - outcome.sampled
        for row, (slot, known) in enumerate(zip(slots.tolist(), before.tolist(), strict=True)):
            # Whoever is new, or had a step of which nothing was told; or its text was replaced.
            if self.context_tokens[slot] != known:
                self.tokens[slot, :known] = rows[row, :known]
            emitted = outcome.emitted[row, : outcome.sampled[row]]
            self.tokens[slot, known : outcome.context[row]] = emitted
        self.prompt_tokens[slots], self.context_tokens[slots] = prompts, outcome.context

    def batch(self, slots: NDArray[np.int64], holds: Tensor, outcome: Outcome) -> Batch:
        """What the session's predictor reads of a step, given who holds the drafter."""
        return Batch(
            slots=torch.from_numpy(slots),
            tokens=torch.from_numpy(self.tokens),
            context_tokens=torch.from_numpy(self.context_tokens),
            prompt_tokens=torch.from_numpy(self.prompt_tokens),
            holds_neural=holds,
            sampled=torch.from_numpy(outcome.sampled),
            rejected=torch.from_numpy(outcome.rejected),
        )
