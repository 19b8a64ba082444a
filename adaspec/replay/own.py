"""Policies of one's own: objects that are asked in every step of a loop, with all known.

A policy that answers nonsense, or fails, raises a `PolicyFault`.
"""

from __future__ import annotations

import copy
import importlib
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, step_s, step_shape
from adaspec.draft.matches import AVAILABLE, START, Matches
from adaspec.errors import GONE, AdaspecError, PolicyFault, SpecError, nearest, shown
from adaspec.policy.budget import Record
from adaspec.policy.protocol import (
    Drafts,
    Ints,
    Policy,
    PolicyBatch,
    Proposal,
    Setup,
    VerifiedProposal,
)
from adaspec.replay.loop import Loop, context_tokens, finish_step, goes_on, new_loop, running
from adaspec.replay.recording import Recording
from adaspec.trace.schema import CONFIDENCES


@dataclass(frozen=True, slots=True, eq=False)
class OwnPolicy:
    """An object that is a policy, by the name that reports call it."""

    name: str
    policy: Policy

    def ask(self, method: Callable[[Any], Any], fact: object) -> Any:
        """What the policy answers; an exception that it raises is a `PolicyFault`."""
        try:
            return method(fact)
        except AdaspecError:
            raise
        except (Exception, SystemExit) as error:
            name = getattr(method, "__name__", "a method")
            raise PolicyFault(f"policy '{self.name}' failed in {name}: {_reason(error)}") from error


def own_policy(text: str) -> OwnPolicy:
    """The policy that `python:MODULE:NAME` makes; modules of the working folder count."""
    module_name, _, name = text.partition(":")[2].partition(":")
    if not module_name or not name:
        raise SpecError(f"malformed policy spec '{text}': write python:MODULE:NAME")
    if "" not in sys.path:
        sys.path.insert(0, "")
    module = None
    try:
        module = importlib.import_module(module_name)
        policy = getattr(module, name)()
    except (Exception, SystemExit) as error:
        guess = "" if module is None or hasattr(module, name) else nearest(name, dir(module))
        raise SpecError(
            f"policy '{text}' cannot be made: {_reason(error)}{guess} (MODULE is searched in the "
            "folder you are in first, and NAME must be what takes no arguments)"
        ) from error
    return named_policy(text, policy)


def named_policy(name: str, policy: Any) -> OwnPolicy:
    """The policy under this name; a `SpecError` where it decides nothing."""
    for gone in ("start(setup)", "holds_drafter(load)", "forwards(batch)"):
        if callable(getattr(policy, gone.partition("(")[0], None)):
            raise SpecError(f"policy '{name}' has '{gone}': it went in 0.2; {GONE[gone]}")
    if not callable(getattr(policy, "decide", None)):
        raise SpecError(
            f"policy '{name}' is no policy: it has no method 'decide' (see docs/api.md)"
        )
    return OwnPolicy(name, policy)


def run_own(
    recording: Recording,
    own: OwnPolicy,
    order: Ints,
    concurrency: int,
    cost: CostModel,
    cap: int,
    comes_s: NDArray[np.float64] | None = None,
) -> Loop:
    """The loop under a copy of the policy, at its end."""
    policy, costs = own.ask(copy.deepcopy, own.policy), cost.constants()
    has_drafter = recording.neural_cap > 0 and getattr(policy, "drafter", True)
    neural_cap = min(recording.neural_cap, cap) if has_drafter else 0
    shows = recording.shows_tokens, recording.shows_confidences
    setup = Setup(cost, cap, neural_cap, concurrency, *shows)
    loop = new_loop(recording.columns, order, concurrency, has_drafter, comes_s)
    while goes_on(loop):
        rows = running(loop)
        step = _Step(own.name, recording, rows, setup)
        batch = step.batch()
        proposal = step.cut(own.ask(policy.decide, batch))
        accepted = step.accepted(proposal)
        rows["emitted"] = np.minimum(accepted + 1, step.left)
        drafted = proposal.neural_len + proposal.ngram_len
        count, context = len(rows), context_tokens(rows)
        shape = step_shape(count, context, int(drafted.sum()), step.forwards, has_drafter)
        if hasattr(policy, "learn"):
            emitted, seconds = rows["emitted"].astype(np.int32), float(step_s(costs, shape))
            own.ask(policy.learn, VerifiedProposal(batch, proposal, accepted, emitted, seconds))
        taken = int(np.minimum(accepted, step.left).sum())
        finish_step(loop, costs, shape, taken)
    return loop


class _Step:
    """One step of all running requests, by what was recorded at their positions."""

    def __init__(self, name: str, recording: Recording, rows: Record, setup: Setup) -> None:
        self.name, self.recording, self.setup = name, recording, setup
        self.request, self.at = rows["request"].copy(), rows["at"].copy()
        self.left = rows["end"] - self.at
        self.prompt = recording.columns.prompt[self.request]
        self.position = self.at - recording.columns.offset[self.request]
        self.forwards = 0
        """How many the policy has asked for."""

    def batch(self) -> PolicyBatch:
        """What the policy is handed."""
        return PolicyBatch(
            self.setup,
            self.prompt.astype(np.int32),
            self.position.astype(np.int32),
            Matches(*self.recording.facts[:, self.at]),
            self._text,
            self._draft,
            self._splice_matches,
        )

    def _text(self, row: int) -> Ints:
        begin = self.recording.text_start[self.request[row]]
        known: Ints = self.recording.text[begin:][: self.prompt[row] + self.position[row]]
        return known

    def _draft(self, forwards: int) -> Drafts:
        most = self.setup.neural_cap
        if not isinstance(forwards, int | np.integer) or not 0 <= forwards <= most:
            raise self._fault(f"asks for {forwards!r:.60} forwards: 0 to {most} can be run")
        self.forwards = max(self.forwards, int(forwards))
        tokens = np.full((len(self.at), forwards), -1, np.int32)
        confidences = np.full((*tokens.shape, len(CONFIDENCES)), np.nan, np.float32)
        if self.recording.shows_tokens:
            tokens[:] = self.recording.drafted[self.at, :forwards]
        if self.recording.shows_confidences:
            confidences[:] = self.recording.confidences[self.at, :forwards]
        return Drafts(tokens, confidences)

    def _splice_matches(self, neural_len: Ints) -> Matches:
        if not self.recording.shows_tokens:
            raise self._fault(
                "looks behind drafted tokens, which this trace lacks: ask `Setup.shows_tokens`"
            )
        lengths = self._lengths(neural_len, self.forwards, "looks behind neural_len")
        facts = self.recording.splice_matches[:, self.at, np.maximum(lengths - 1, 0)]
        facts[:, lengths == 0] = 0
        facts[START, lengths == 0] = -1
        return Matches(*facts)

    def cut(self, proposal: object) -> Proposal:
        """The lengths as they can be verified; a `PolicyFault` where they are nonsense."""
        if not isinstance(proposal, Proposal):
            raise self._fault(f"decides on {proposal!r:.60}, not on a Proposal")
        neural_len = self._lengths(proposal.neural_len, self.forwards, "proposes neural_len")
        ngram_len = self._lengths(proposal.ngram_len, self.setup.cap, "proposes ngram_len")
        # Where drafted tokens are not recorded, what can be copied is what the look-up behind as
        # many true tokens gives: behind a wrong draft nothing is gained either way. Where the
        # output ends, the sequence is over, and nothing is paid.
        recording, ends = self.recording, neural_len >= self.left
        available = recording.facts[AVAILABLE, np.where(ends, self.at, self.at + neural_len)]
        if self.recording.shows_tokens:
            behind = recording.splice_matches[AVAILABLE, self.at, np.maximum(neural_len - 1, 0)]
            available = np.where(neural_len > 0, behind, available)
            ends &= recording.columns.neural[self.at] >= neural_len
        room = np.minimum(np.where(ends, 0, available), self.setup.cap - neural_len)
        return Proposal(neural_len, np.minimum(ngram_len, room).astype(np.int32))

    def accepted(self, proposal: Proposal) -> Ints:
        """What the target accepts of a proposal that was cut."""
        columns, neural_len = self.recording.columns, proposal.neural_len
        right = np.where(neural_len > 0, np.minimum(columns.neural[self.at], neural_len), 0)
        goes_on = (right == neural_len) & (neural_len < self.left)
        copied = columns.run[np.where(goes_on, self.at + neural_len, self.at)]
        return (right + goes_on * np.minimum(proposal.ngram_len, copied)).astype(np.int32)

    def _lengths(self, values: object, most: int, what: str) -> Ints:
        """One length per row; a `PolicyFault` otherwise."""
        numbers, rows = np.array(values), len(self.at)
        is_whole = numbers.shape == (rows,) and numbers.dtype.kind in "iu"
        if not is_whole or numbers.min() < 0 or numbers.max() > most:
            raise self._fault(
                f"{what} {shown(numbers.tolist())}: for each of {rows} running rows, one whole "
                f"number from 0 to {most} is needed"
            )
        return numbers.astype(np.int32)

    def _fault(self, what: str) -> PolicyFault:
        return PolicyFault(f"policy '{self.name}' {what}")


def _reason(error: BaseException) -> str:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f" ({Path(last.filename).name}, line {last.lineno})"
    return what if last.filename == __file__ else what + where
