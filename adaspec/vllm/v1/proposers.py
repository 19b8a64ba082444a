"""The drafters that replace vLLM's proposers: they draft exactly as far as the session says."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adaspec.trace.schema import CONFIDENCES
from adaspec.vllm.session.logits import read_logits
from adaspec.vllm.session.session import Session
from adaspec.vllm.workarounds import detach_adapters


class Turn:
    """One step's drafting: what the session decided before, and what it makes of the drafts."""

    def __init__(self, session: Session, rows: int, forwards: int) -> None:
        """`forwards` as `Session.begin` says it, of so many rows."""
        self.forwards = forwards
        self.needs_keep_alive = session.needs_keep_alive
        self._session, self._rows = session, rows
        self._evidence: list[Tensor] = []

    def note_run(self) -> None:
        """The drafter runs in this step."""
        self._session.drafter_ran = True

    def take(self, evidence: Tensor) -> None:
        """Take in the (rows, 4) evidence of a forward, as `read_logits` says it."""
        self._evidence.append(evidence)

    def proposed(self) -> list[list[int]]:
        """The drafts, row by row."""
        evidence = torch.zeros((0, self._rows, 1 + len(CONFIDENCES)))
        if self._evidence:
            evidence = torch.stack(self._evidence).cpu()
        drafted = evidence[:, :, 0].T.to(torch.int64)
        self._session.finish(drafted, evidence[:, :, 1:].contiguous())
        return self._session.proposed(self._rows)


class NgramDrafter:
    """The drafter if there is no neural one, called by vLLM's `custom_class` method."""

    num_speculative_tokens = 0
    """How often vLLM's dummy steps run it."""
    adaspec: Turn | None = None
    """Set while the engine drafts for a step; None otherwise, as in profiling."""

    def __init__(self, vllm_config: Any) -> None:
        """Hold nothing: drafts are copied from the text."""

    def load_model(self, target: Any) -> None:
        """Do nothing, because drafts are copied from the text."""

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        """Draft for every row; outside of a step, every draft is empty."""
        turn = self.adaspec
        return [[] for _ in sampled_token_ids] if turn is None else turn.proposed()


class _EndDrafting(Exception):
    """Raised in `_sample_draft_tokens` to leave vLLM's drafting loop."""


class HeadMixin:
    """Makes a neural drafter follow the session; its class has this as its first base."""

    adaspec: Turn | None = None
    """Set while the engine drafts for a step; None otherwise, as in profiling."""
    adaspec_limit: int
    """The first position beyond what the drafter was made for."""
    adaspec_most: int
    """The most tokens that it drafts in a step."""

    def load_model(self, target_model: Any, *args: Any, **kwargs: Any) -> Any:
        """Load as vLLM does, then detach the target's adapters from shared layers."""
        loaded = super().load_model(target_model, *args, **kwargs)  # type: ignore[misc]
        detach_adapters(self.model, target_model)  # type: ignore[attr-defined]
        return loaded

    def propose(self, *args: Any, **kwargs: Any) -> Any:
        """Draft any number of tokens for every row; the drafter's KV stays complete."""
        turn = self.adaspec
        if turn is None:
            return super().propose(*args, **kwargs)  # type: ignore[misc]
        # If the drafter cannot run, its KV is not kept up either, as in vLLM itself.
        if not self._possible(kwargs) or not (turn.forwards or turn.needs_keep_alive):
            return turn.proposed()
        cap = self.num_speculative_tokens  # type: ignore[has-type]
        turn.note_run()
        kwargs["num_speculative_tokens"] = turn.forwards
        kwargs["target_positions"] = self._within_limit(kwargs["target_positions"], turn.forwards)
        try:
            super().propose(*args, **kwargs)  # type: ignore[misc]
        except _EndDrafting:
            pass
        finally:
            self.num_speculative_tokens = cap
        return turn.proposed()

    def prepare_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """As vLLM does, but with two tensors of lengths: each further forward adds one to both.

        On CPU, vLLM makes one tensor of the two, so every forward would add two to it. The drafter
        would read what was never written, and beyond the longest length past its block table.
        """
        metadata, token_indices = super().prepare_inputs(*args, **kwargs)  # type: ignore[misc]
        metadata.seq_lens = metadata.seq_lens.clone()
        return metadata, token_indices

    def _sample_draft_tokens(
        self, hidden_states: Tensor, sampling_metadata: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Choose greedily, as vLLM does, and keep what the logits say."""
        turn = self.adaspec
        if turn is None:
            return super()._sample_draft_tokens(hidden_states, sampling_metadata)  # type: ignore[misc]
        if not turn.forwards:
            raise _EndDrafting
        tokens, evidence = read_logits(self.model.compute_logits(hidden_states))  # type: ignore[attr-defined]
        turn.take(evidence)
        return tokens, None

    def _possible(self, kwargs: dict[str, Any]) -> bool:
        """Whether the drafter can run: a draft model has no positions beyond its limit."""
        if not self.needs_extra_input_slots:  # type: ignore[attr-defined]
            return True
        furthest = kwargs["common_attn_metadata"].max_seq_len + max(1, self.adaspec_most)
        return bool(furthest <= self.adaspec_limit)

    def _within_limit(self, positions: Tensor, limit: int) -> Tensor:
        """Clamp positions to the drafter's rotary table; rows beyond it just draft badly."""
        if self.adaspec_limit >= self.max_model_len:  # type: ignore[attr-defined]
            return positions
        return positions.clamp(max=max(0, self.adaspec_limit - 1 - limit))
