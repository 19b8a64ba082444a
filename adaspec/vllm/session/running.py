"""What a session serves, and its engine's batch as the host knows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from adaspec.policy.learned import ServedPolicy
from adaspec.policy.protocol import Bools, Ints, Setup
from adaspec.policy.static import StaticPolicy
from adaspec.vllm.choice import RECORD_CAP, Target
from adaspec.vllm.options import Options

if TYPE_CHECKING:
    from adaspec.vllm.session.report import Outcome


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
    def version(self) -> str:
        """An identifier that tells one training of the policy from another, if it has any."""
        manifest = None if isinstance(self.policy, StaticPolicy) else self.policy.manifest
        if manifest is None:
            return ""
        return f"{manifest.fingerprint} adaspec {manifest.adaspec_version}"

    @property
    def record_cap(self) -> int:
        """How many tokens are drafted at each position of the recorded requests."""
        if not self.setup.neural_cap:
            return 0
        if self.options.mode == "record":
            assert self.options.num_speculative_tokens is not None
            return self.options.num_speculative_tokens
        return min(self.setup.neural_cap, RECORD_CAP)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of an engine's batch, as the host knows them when it decides."""

    requests: Sequence[str]
    slots: NDArray[np.int64]
    prompt_tokens: Ints
    context_tokens: Ints
    """At most so many tokens are known."""
    samples: Bools
    """Whether the step ends the row's prompt or is beyond it."""
    reads: Bools
    """Whether the step reads text of the row, be it once more after a preemption."""
    verified: Ints
    """Drafted tokens that the step verifies, where the scheduler says how many."""
    outcome: Outcome | None = None
    """What the target made of them; None in an async engine, whose device knows it first."""
    room: Ints | None = None
    """The most tokens that the engine lets each row's draft have, where it limits any."""
