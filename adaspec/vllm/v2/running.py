"""What a worker of a V2 engine knows of its batch, its requests and the steps under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.policy.protocol import Bools, Ints
from adaspec.vllm.batch import EngineStep
from adaspec.vllm.request_limits import UNLIMITED, Limits
from adaspec.vllm.v2.host import Decided
from adaspec.vllm.v2.report import Copy


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of an engine's batch, as the host knows them before the step's outcome."""

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


FACTS = np.dtype(
    [(name, "?") for name in ("holds_neural", "recorded", "copies", "ended")]
    + [(name, "i8") for name in ("most_tokens", "known_tokens", "end")]
)
"""What every step asks of its rows' requests, by slot: also whether nothing follows the output, the
most tokens of a draft, and how many tokens are known, by what was reported, and at most."""
_NO_END = 1 << 40


@dataclass(slots=True, eq=False)
class Request:
    """A request that may still run."""

    name: str
    prompt: Ints
    output: list[int]
    """Its emitted tokens so far, as far as observers have been told."""
    max_tokens: int | None
    """Where its output ends at the latest; None if nothing says so."""
    ends: frozenset[int]
    """Tokens that end it, once it has emitted `least_tokens`."""
    least_tokens: int
    params: Any = None
    """Its sampling parameters."""
    key: object = None
    """What must be the same for it to know another's answer; None: it knows nobody's."""
    owner: int = 0
    """The number that the memory gives the key."""
    slot: int = -1
    """Its place in the engine; -1 until it is in a batch."""
    limits: Limits = UNLIMITED
    recorded: bool = False
    undrafted: bool = False
    """Whether it ran in mode 'off' or was held off: the drafter's KV of its text has holes."""

    def facts(self) -> tuple[object, ...]:
        """Its `FACTS` as it enters, without the drafter."""
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


@dataclass(slots=True)
class Pending:
    """A step of which the report has not come, or whose drafts have not been verified."""

    number: int
    requests: NDArray[Any]
    """The `Request` of each decided row."""
    rows: Ints
    """Where the decided rows stand in the step's batch."""
    decided: Decided
    recorded: Bools
    limited: Bools
    """The rows for which nothing may be drafted, as the request or an option says."""
    room: Ints | None = None
    """The most tokens that each row's request or its end leave; None if no row is limited."""
    copy: Copy | None = None
    drafter_runs: int = 0
    """How often the drafter ran; for recorded requests oftener than was decided."""
    decision_s: float = 0.0
    began_s: float = 0.0
    event: EngineStep | None = None
    """What observers were told of it."""
    ended: Bools | None = None
    """The rows whose request had ended before: an engine learns of that a step late."""
