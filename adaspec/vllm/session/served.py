"""What a session serves."""

from __future__ import annotations

from dataclasses import dataclass

from adaspec.policy.learned import ServedPolicy
from adaspec.policy.protocol import Setup
from adaspec.vllm.choice import RECORD_CAP, Target
from adaspec.vllm.options import Options


@dataclass(frozen=True, slots=True)
class Serving:
    """What is served and how; it never changes during a session."""

    policy: ServedPolicy
    options: Options
    """As they were chosen at the start: a `mode_file` may change the mode."""
    setup: Setup
    target: Target

    @property
    def name(self) -> str:
        """The policy's name for operators."""
        asked = None if self.options.mode == "record" else self.options.policy
        return asked or self.policy.name

    @property
    def record_cap(self) -> int:
        """How many tokens are drafted at each position of the recorded requests."""
        if not self.setup.neural_cap:
            return 0
        if self.options.mode == "record":
            assert self.options.num_speculative_tokens is not None
            return self.options.num_speculative_tokens
        return min(self.setup.neural_cap, RECORD_CAP)
