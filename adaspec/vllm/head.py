"""Mixed into vLLM's neural proposers: they draft as far as the session says, and no further."""

from __future__ import annotations

from typing import Any

import torch

from adaspec.vllm.compatibility import part_from_adapters
from adaspec.vllm.evidence import fetch, read_logits
from adaspec.vllm.session import Session


class _Enough(Exception):
    """Leaves vLLM's drafting loop from where each drafted token passes."""


class HeadMixin:
    """Stands before an EagleProposer, DraftModelProposer or MTP proposer in its class's bases."""

    adaspec: Session | None = None
    """The session, while a step of the engine is being drafted for; None in profiling."""
    adaspec_limit: int
    """Positions from here on are beyond what the drafter was made for."""
    _adaspec_count: int | None = None
    """Tokens drafted per row in this call; None outside of one."""

    def load_model(self, target_model: Any, *args: Any, **kwargs: Any) -> Any:
        """vLLM's own, and then without the target's adapters."""
        loaded = super().load_model(target_model, *args, **kwargs)  # type: ignore[misc]
        part_from_adapters(self.model, target_model)  # type: ignore[attr-defined]
        return loaded

    def propose(self, *args: Any, **kwargs: Any) -> Any:
        """Drafts of any length for every row, and the drafter's KV kept whole."""
        session = self.adaspec
        if session is None:
            return super().propose(*args, **kwargs)  # type: ignore[misc]
        possible = self._possible(kwargs, session)
        most = session.forwards(possible)
        # Where it cannot run it is not kept up either, as with vLLM's own drafting.
        if not possible or (most == 0 and not session.keeps_alive):
            session.drafter_ran(0, 0)
            return session.finish()
        cap = self.num_speculative_tokens  # type: ignore[has-type]
        kwargs["num_speculative_tokens"] = most
        kwargs["target_positions"] = self._within_limit(kwargs["target_positions"], most)
        self._adaspec_count = 0
        try:
            super().propose(*args, **kwargs)  # type: ignore[misc]
        except _Enough:
            pass
        finally:
            count, self._adaspec_count = self._adaspec_count, None
            self.num_speculative_tokens = cap
        session.drafter_ran(count, int(count == 0))
        return session.finish()

    def _sample_draft_tokens(
        self, hidden_states: torch.Tensor, sampling_metadata: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """vLLM's own greedy choice; what it says goes to the session, which may end drafting."""
        session = self.adaspec
        if session is None or self._adaspec_count is None:
            return super()._sample_draft_tokens(hidden_states, sampling_metadata)  # type: ignore[misc]
        tokens, evidence = read_logits(self.model.compute_logits(hidden_states))  # type: ignore[attr-defined]
        self._adaspec_count += 1
        if not session.take(*fetch(evidence)):
            raise _Enough
        return tokens, None

    def _possible(self, kwargs: dict[str, Any], session: Session) -> bool:
        """Whether the drafter can run: a draft model counts its positions on by itself."""
        if not self.needs_extra_input_slots:  # type: ignore[attr-defined]
            return True
        furthest = kwargs["common_attn_metadata"].max_seq_len + max(1, session.setup.neural_cap)
        return bool(furthest <= self.adaspec_limit)

    def _within_limit(self, positions: torch.Tensor, most: int) -> torch.Tensor:
        """Positions that the drafter's rotary table has: rows beyond it draft badly, no worse."""
        if self.adaspec_limit >= self.max_model_len:  # type: ignore[attr-defined]
            return positions
        return positions.clamp(max=max(0, self.adaspec_limit - 1 - most))
