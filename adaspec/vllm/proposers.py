"""The drafters that replace vLLM's proposers: they draft exactly as far as the session says."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adaspec.policy.protocol import Floats, Ints
from adaspec.vllm.session import Session
from adaspec.vllm.workarounds import detach_adapters


class NgramDrafter:
    """The drafter if there is no neural one, called by vLLM's `custom_class` method."""

    num_speculative_tokens = 0
    """How often vLLM's dummy steps run it."""

    def __init__(self, vllm_config: Any) -> None:
        self.adaspec: Session | None = None
        """The session, set while the engine drafts for a step; None otherwise, as in profiling."""

    def load_model(self, target: Any) -> None:
        """Do nothing, because drafts are copied from the text."""

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        """Draft for every row; outside of a step, every draft is empty."""
        session = self.adaspec
        if session is None:
            return [[] for _ in sampled_token_ids]
        session.forwards()
        session.drafter_ran(0, 0)
        return session.finish()


class _EndDrafting(Exception):
    """Raised in `_sample_draft_tokens` to leave vLLM's drafting loop."""


class HeadMixin:
    """Makes a neural drafter follow the session; its class has this as its first base."""

    adaspec: Session | None = None
    """The session, set while the engine drafts for a step; None otherwise, as in profiling."""
    adaspec_limit: int
    """The first position beyond what the drafter was made for."""
    _adaspec_count: int | None = None
    """Tokens drafted per row in this call of `propose`; None outside of a call."""

    def load_model(self, target_model: Any, *args: Any, **kwargs: Any) -> Any:
        """Load as vLLM does, then detach the target's adapters from shared layers."""
        loaded = super().load_model(target_model, *args, **kwargs)  # type: ignore[misc]
        detach_adapters(self.model, target_model)  # type: ignore[attr-defined]
        return loaded

    def propose(self, *args: Any, **kwargs: Any) -> Any:
        """Draft any number of tokens for every row; the drafter's KV stays complete."""
        session = self.adaspec
        if session is None:
            return super().propose(*args, **kwargs)  # type: ignore[misc]
        possible = self._possible(kwargs, session)
        limit = session.forwards(possible)
        # If the drafter cannot run, its KV is not kept up either, as in vLLM itself.
        if not possible or (limit == 0 and not session.keeps_alive):
            session.drafter_ran(0, 0)
            return session.finish()
        cap = self.num_speculative_tokens  # type: ignore[has-type]
        kwargs["num_speculative_tokens"] = limit
        kwargs["target_positions"] = self._within_limit(kwargs["target_positions"], limit)
        self._adaspec_count = 0
        try:
            super().propose(*args, **kwargs)  # type: ignore[misc]
        except _EndDrafting:
            pass
        finally:
            count, self._adaspec_count = self._adaspec_count, None
            self.num_speculative_tokens = cap
        session.drafter_ran(count, int(count == 0))
        return session.finish()

    def _sample_draft_tokens(
        self, hidden_states: torch.Tensor, sampling_metadata: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Choose greedily, as vLLM does, and show the result to the session, which may stop."""
        session = self.adaspec
        if session is None or self._adaspec_count is None:
            return super()._sample_draft_tokens(hidden_states, sampling_metadata)  # type: ignore[misc]
        tokens, evidence = read_logits(self.model.compute_logits(hidden_states))  # type: ignore[attr-defined]
        self._adaspec_count += 1
        if not session.take(*fetch(evidence)):
            raise _EndDrafting
        return tokens, None

    def _possible(self, kwargs: dict[str, Any], session: Session) -> bool:
        """Whether the drafter can run: a draft model has no positions beyond its limit."""
        if not self.needs_extra_input_slots:  # type: ignore[attr-defined]
            return True
        furthest = kwargs["common_attn_metadata"].max_seq_len + max(1, session.setup.neural_cap)
        return bool(furthest <= self.adaspec_limit)

    def _within_limit(self, positions: torch.Tensor, limit: int) -> torch.Tensor:
        """Clamp positions to the drafter's rotary table; rows beyond it just draft badly."""
        if self.adaspec_limit >= self.max_model_len:  # type: ignore[attr-defined]
            return positions
        return positions.clamp(max=max(0, self.adaspec_limit - 1 - limit))


def read_logits(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Read (tokens, evidence) from logits.

    Tokens are the argmax of each row. The evidence of a row is its token and
    `trace.schema.CONFIDENCES`: logprob = log p1, margin = log p1 - log p2, entropy = -sum p log p.
    It is one tensor so that one copy brings it to the host, and a float32 holds any token id below
    2**24.
    """
    tokens = logits.argmax(dim=-1)
    logp = torch.log_softmax(logits.float(), dim=-1)
    top = logp.topk(2, dim=-1).values
    # Tokens that a reduced draft vocabulary lacks have logits of -inf; for them, p log p is 0.
    entropy = torch.special.entr(logp.exp()).sum(dim=-1)
    columns = [tokens.float(), top[:, 0], top[:, 0] - top[:, 1], entropy]
    return tokens, torch.stack(columns, dim=1)


def fetch(evidence: torch.Tensor) -> tuple[Ints, Floats]:
    """Copy evidence to the host: (rows,) tokens and (rows, 3) confidences."""
    host: Any = evidence.cpu().numpy()
    return host[:, 0].astype(np.int32), np.ascontiguousarray(host[:, 1:], np.float32)
