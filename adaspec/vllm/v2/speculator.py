"""vLLM's speculators, with drafts of the policy's choice in place of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaspec.kernels.batch import Batch
from adaspec.trace.schema import CONFIDENCES
from adaspec.vllm.session.drafting import has_kernels, read_logits
from adaspec.vllm.session.requests import Rows
from adaspec.vllm.session.session import Session
from adaspec.vllm.v2.graphs import (
    capture_forwards,
    find_each_length,
    take_any_length,
    tell_longest_row,
)


class Reading:
    """Reads the logits of a speculator's head, on an accelerator in one launch.

    The confidences are kept by the place of the token, as graphs of forwards fill them in too.
    """

    def __init__(self, speculator: Any, rows: int, device: torch.device) -> None:
        shape = (speculator.num_speculative_steps, rows, len(CONFIDENCES))
        self.confidences = torch.full(shape, torch.nan, device=device)
        """(tokens, rows, 3) in the order of `trace.schema.CONFIDENCES`."""
        self.offsets: Tensor | None = None
        """What is added to a token of the head's own vocabulary to make it the target's."""
        self._speculator = speculator
        self._reader: Any = None

    def load(self) -> None:
        """Look at the head that was loaded."""
        self.offsets = own_offsets(self._speculator)

    def read(self, hidden_states: Tensor, draft_step: Tensor, module: int) -> Tensor:
        """The likeliest tokens behind hidden states; their confidences are kept."""
        if self.offsets is None or not has_kernels(hidden_states.device):
            logits = self._speculator.compute_draft_logits(hidden_states, module)
            return self.keep(logits, draft_step)
        logits = _own_logits(self._speculator.model, hidden_states)
        return self.keep(logits, draft_step, self.offsets)

    def keep(self, logits: Tensor, draft_step: Tensor, offsets: Tensor | None = None) -> Tensor:
        """The likeliest tokens by these logits; their confidences are kept.

        `draft_step` is the place of the token in the draft: one for all, or one each where rows
        have all their tokens one behind another.
        """
        if has_kernels(logits.device):
            from adaspec.kernels.serving import LogitsReader

            if self._reader is None:
                self._reader = LogitsReader(self.confidences)
            return self._reader.read(logits, draft_step, offsets)
        tokens, evidence = read_logits(logits)
        each = len(self.confidences) if draft_step.ndim else 1
        rows = torch.arange(len(tokens)) // each
        self.confidences[draft_step.long(), rows] = evidence[:, 1:]
        return tokens


def own_offsets(speculator: Any) -> Tensor | None:
    """What makes a head's own tokens the target's, where its own logits say all there is; or None.

    Many heads know a part of the target's vocabulary. vLLM spreads their logits over all of it,
    with -inf between them, which is four times as much to write and to read.
    """
    model = speculator.model
    offsets = getattr(model, "draft_id_to_target_id", None)
    if offsets is None or not hasattr(model, "lm_head") or not hasattr(model, "logits_processor"):
        return None
    targets = torch.arange(len(offsets), device=offsets.device) + offsets
    # Of equal logits the first one counts, in either vocabulary.
    if len(targets) < 2 or not bool((targets.diff() > 0).all()):
        return None
    size, dtype = model.lm_head.embedding_dim, speculator.dtype
    probe = torch.linspace(-1.0, 1.0, size, dtype=dtype, device=offsets.device)[None]
    with torch.inference_mode():
        spread, own = speculator.compute_draft_logits(probe, 0), _own_logits(model, probe)
        if own.shape[1] != len(offsets) or int(targets[-1]) >= spread.shape[1]:
            return None
        expected = torch.full_like(spread, -torch.inf)
        expected[:, targets] = own
    return offsets.detach() if torch.equal(expected, spread) else None


def _own_logits(model: Any, hidden_states: Tensor) -> Tensor:
    logits: Tensor = model.logits_processor(model.lm_head, hidden_states)
    return logits


def take_over(runner: Any, session: Session) -> None:
    """Make a runner's speculator draft as the session says."""
    speculator = runner.speculator
    base = type(speculator)
    is_neural = hasattr(base, "sample_draft")
    speculator.__class__ = _following(base, runner, is_neural)
    rows, cap = runner.max_num_reqs, speculator.num_speculative_steps
    speculator.adaspec_session = session
    warm_up(runner, session)
    speculator.adaspec_reading = Reading(speculator, rows, runner.device)
    if not is_neural:
        speculator.draft_token_confidence_probs = torch.zeros(rows, cap, device=runner.device)


def warm_up(runner: Any, session: Session) -> None:
    """Compile what the session's steps launch, so that no request waits for it."""
    slots = torch.zeros(1, dtype=torch.int64, device=runner.device)
    holds = torch.zeros(runner.max_num_reqs, dtype=torch.bool, device=runner.device)
    counts = slots.int()
    session.drafting.warm_up(batch_of(runner.req_states, slots, holds, counts, counts))


def _following(base: Any, runner: Any, is_neural: bool) -> Any:
    """A speculator's class that follows the session.

    It has no other base: so it has the layout of the objects that it is given to.
    """
    states = runner.req_states

    class Following(base):
        adaspec_session: Session
        adaspec_reading: Reading
        num_speculative_steps: int
        adaspec_dummy_forwards: int | None = None
        """How often it runs in steps without requests; None: as often as it can."""

        def load_model(self, *args: Any, **kwargs: Any) -> None:
            """Load as vLLM does, then look at the head."""
            super().load_model(*args, **kwargs)
            self.adaspec_reading.load()

        def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
            """As vLLM does, and say what to capture."""
            super().init_cudagraph_manager(cudagraph_mode)
            if hasattr(self, "query_cudagraph_manager"):  # its pass is as long in every step
                find_each_length(self.query_cudagraph_manager)
            if not hasattr(base, "_generate_fused_drafts"):
                return
            if runner.adaptive_verification is not None:
                take_any_length(self, cudagraph_mode)
            else:  # all drafts are of one length
                find_each_length(self.prefill_cudagraph_manager)
            capture_forwards(self, range(2, self.adaspec_session.most_forwards + 1))

        def sample_draft(
            self,
            hidden_states: Tensor,
            sample_src_positions: Tensor,
            idx_mapping: Tensor,
            temperature: Tensor,
            seeds: Tensor,
            draft_step: Tensor,
            draft_logits: Tensor | None,
            spec_step_idx: int = 0,
            **_: Any,
        ) -> Tensor:
            """Draft greedily, and keep what the logits say of the token."""
            return self.adaspec_reading.read(hidden_states, draft_step, spec_step_idx)

        def _maybe_predict_acceptance(
            self, logits: Tensor, idx_mapping: Tensor, draft_step: Tensor
        ) -> None:
            """Keep what logits say of tokens that vLLM takes itself: DSpark's and DFlash 2's."""
            self.adaspec_reading.keep(logits, draft_step)

        @torch.inference_mode()
        def propose(
            self,
            input_batch: Any,
            attn_metadata: Any,
            slot_mappings: Any,
            last_hidden_states: Tensor,
            aux_hidden_states: Any,
            num_sampled: Tensor,
            num_rejected: Tensor,
            *args: Any,
            num_speculative_tokens: int | None = None,
            dummy_run: bool = False,
            **kwargs: Any,
        ) -> Tensor:
            """The drafts that the session chooses, for which the head drafts as much as it says."""

            def run_drafter(forwards: int) -> Tensor:
                tell_longest_row(self, input_batch)
                most = self.num_speculative_steps
                if base.__name__ == "StandaloneARSpeculator":
                    # Whatever it is asked for, it runs as often as it says, and at least once.
                    self.num_speculative_steps = max(forwards, 1)
                try:
                    drafted: Tensor = super(Following, self).propose(
                        input_batch,
                        attn_metadata,
                        slot_mappings,
                        last_hidden_states,
                        aux_hidden_states,
                        num_sampled,
                        num_rejected,
                        *args,
                        num_speculative_tokens=forwards,
                        dummy_run=dummy_run,
                        **kwargs,
                    )
                finally:
                    self.num_speculative_steps = most
                return drafted

            def batch(holds: Tensor) -> Batch:
                return batch_of(states, input_batch.idx_mapping, holds, num_sampled, num_rejected)

            target: Tensor = self.draft_tokens if is_neural else self.drafts
            if dummy_run:
                asked = self.adaspec_dummy_forwards
                forwards = self.num_speculative_steps if asked is None else asked
                return run_drafter(forwards) if forwards else target
            session, count = self.adaspec_session, input_batch.num_reqs
            forwards = session.begin(rows_of(input_batch, states), batch)
            drafted = num_sampled.new_zeros((count, 0), dtype=torch.int64)
            if is_neural and (forwards or session.needs_keep_alive):
                drafted = run_drafter(forwards)[:, :forwards].clone()
                session.drafter_ran = True
            drafts = session.finish(drafted, self.adaspec_reading.confidences[:, :count])
            survival = self.draft_token_confidence_probs[:count]
            if drafts is None:
                target[:count].zero_()
                survival.zero_()
            else:
                target[:count] = drafts.tokens
                survival.copy_(drafts.survival)
            return target[:count]

    Following.__name__ = f"AdaSpec{base.__name__}"
    return Following


def batch_of(states: Any, slots: Tensor, holds: Tensor, sampled: Tensor, rejected: Tensor) -> Batch:
    """The device's view of a batch, given the engine's state of all requests."""
    return Batch(
        slots=slots,
        tokens=states.all_token_ids.gpu,
        context_tokens=states.total_len.gpu,
        prompt_tokens=states.prompt_len.gpu,
        holds_neural=holds,
        sampled=sampled,
        rejected=rejected,
    )


def rows_of(input_batch: Any, states: Any) -> Rows:
    """The batch's rows, as the host knows them."""
    slots = np.asarray(input_batch.idx_mapping_np, np.int64)
    read = input_batch.num_computed_prefill_tokens_np + input_batch.num_scheduled_tokens
    context = input_batch.num_computed_tokens_np + input_batch.num_scheduled_tokens
    drafts = input_batch.num_draft_tokens_per_req  # None where none were scheduled
    return Rows(
        requests=list(input_batch.req_ids),
        slots=slots,
        prompt_tokens=states.prompt_len.np[slots].astype(np.int32),
        context_tokens=context.astype(np.int32),
        samples=read >= input_batch.prefill_len_np,
        reads=input_batch.num_computed_prefill_tokens_np < input_batch.prefill_len_np,
        verified=np.zeros(len(slots), np.int32) if drafts is None else np.asarray(drafts, np.int32),
    )
