"""The drafter where there is no neural one: vLLM's own hook for a class of one's own."""

from __future__ import annotations

from typing import Any

from adaspec.vllm.session import Session


class NgramDrafter:
    """What vLLM's `custom_class` method calls; the runner's hook hands it the session."""

    def __init__(self, vllm_config: Any) -> None:
        self.session: Session | None = None

    def load_model(self, target: Any) -> None:
        """Nothing to load: drafts are copied from the text."""

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        """Drafts for every row; none outside of a step, as in profiling."""
        session = self.session
        if session is None:
            return [[] for _ in sampled_token_ids]
        session.forwards()
        session.drafter_ran(0, 0)
        return session.finish()
