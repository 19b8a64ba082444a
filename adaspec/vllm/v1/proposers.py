"""The drafters that replace vLLM's proposers: a head runs exactly as often as the session says."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from adaspec.vllm.session.logits import read_logits


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
