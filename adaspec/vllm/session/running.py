"""What a session knows: what is served, its engine's batch and its requests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaspec.policy.learned import ServedPolicy
from adaspec.policy.protocol import Bools, Ints, Setup
from adaspec.policy.static import StaticPolicy
from adaspec.vllm.choice import RECORD_CAP, Target
from adaspec.vllm.client_arguments import UNLIMITED, Limits
from adaspec.vllm.options import Options
from adaspec.vllm.patching import SALT_ATTRIBUTE

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


REQUEST_FACTS = np.dtype(
    [(name, "?") for name in ("holds_neural", "recorded", "copies", "ended")]
    + [(name, "i8") for name in ("most_tokens", "known_tokens", "end")]
)
"""What every step asks of its rows' requests, by slot: also whether nothing follows the output, the
most tokens of a draft, and how many tokens are known, by what was reported, and at most."""
_NO_END = 1 << 40


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request that may still run."""

    name: str
    prompt: Ints
    output: list[int]
    """Its emitted tokens so far, as far as observers have been told."""
    params: Any
    """Its sampling parameters; None if it has none."""
    key: object
    """What must be the same for it to know another's answer; None: it knows nobody's."""
    max_model_len: int | None = None
    """Where its text ends at the latest, if the engine says so."""
    max_tokens: int | None = None
    """Where its output ends at the latest; None if nothing says so."""
    ends: frozenset[int] = frozenset()
    """Tokens that end it, once it has emitted `least_tokens`."""
    least_tokens: int = 0
    owner: int = 0
    """The number that the memory gives the key."""
    slot: int = -1
    """Its place in the engine; -1 until it is in a batch."""
    limits: Limits = UNLIMITED
    recorded: bool = False
    undrafted: bool = False
    """Whether it ran in mode 'off' or was held off: the drafter's KV of its text has holes."""

    def __post_init__(self) -> None:
        if self.params is not None:
            self.max_tokens, self.least_tokens = self.params.max_tokens, self.params.min_tokens
            if not self.params.ignore_eos:
                self.ends = frozenset(self.params.all_stop_token_ids)
        if self.max_model_len is not None:
            room = self.max_model_len - len(self.prompt)
            self.max_tokens = room if self.max_tokens is None else min(self.max_tokens, room)

    @property
    def is_whole(self) -> bool:
        """Whether nothing follows its output."""
        return bool(self.output) and self._ends(len(self.output), self.output[-1])

    def facts(self) -> tuple[object, ...]:
        """Its `REQUEST_FACTS` as it enters, without the drafter."""
        prompt, count = len(self.prompt), len(self.output)
        ended = self._ends(count, self.output[-1] if count else -1)
        most = 0 if self.recorded else self.limits.most_tokens
        end = _NO_END if self.max_tokens is None else prompt + self.max_tokens
        return False, self.recorded, self.limits.copies, ended, most, prompt + count, end

    def emits(self, count: int, tokens: Sequence[int]) -> tuple[int, bool]:
        """How many of the tokens follow its first `count`, up to its end, and whether that came."""
        if self._ends(count, -1):
            return 0, True
        for more, token in enumerate(tokens, 1):
            if self._ends(count + more, token):
                return more, True
        return len(tokens), False

    def _ends(self, count: int, last: int) -> bool:
        """Whether nothing follows the last of so many tokens."""
        if self.max_tokens is not None and count >= self.max_tokens:
            return True
        return count > self.least_tokens and last in self.ends


def owner_key(new: Any) -> object:
    """What must be the same for a new request to know another's answer; None: it knows nobody's.

    That is a hash of its LoRA adapter and the `cache_salt` by which vLLM keeps prefix caches apart.
    """
    if not hasattr(new, SALT_ATTRIBUTE):  # its scheduler does not tell it
        return None
    adapter = new.lora_request
    both = [getattr(new, SALT_ATTRIBUTE), None if adapter is None else adapter.lora_name]
    return hashlib.blake2b(json.dumps(both).encode(), digest_size=16).hexdigest()
