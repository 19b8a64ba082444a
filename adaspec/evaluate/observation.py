"""Policies watched step by step: what their steps lost, and single requests to look into.

The beginning of every cell's first order is replayed once more under the named policies and the
best static rule, by the loop for any policy, with an observer in it. Where the loss lies, and what
single requests did, is kept; the figures of the report do not rest on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Deciding
from adaspec.evaluate.options import ALL, Cell, Options, Progress, cells, silent
from adaspec.evaluate.report import OPPONENT
from adaspec.evaluate.selection import content_hash
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Policy
from adaspec.policy.reasons import reasons_of
from adaspec.policy.spec import parse_policy
from adaspec.replay.loop import SeenStep
from adaspec.replay.losses import PARTS, Hindsight, add_losses, hindsight
from adaspec.replay.oracles import Oracle
from adaspec.replay.orders import draw_orders
from adaspec.replay.player import Contender, Player
from adaspec.replay.recording import Recording
from adaspec.trace.schema import Request

Ints = NDArray[np.int32]

REFERENCE = Oracle("plan-splice")
WATCHED_TOKENS, WATCHED_TOKENS_OF_WORKLOAD = 25_000, 10_000
"""Output tokens of the mix, and of a workload alone, that are enough to watch: the loop for any
policy is slow. At high loads there are more: an order fills the batch three times."""
SAMPLED = 3
"""The most requests of a workload that are kept step by step, per load and policy."""
MAX_OUTPUT_SHOWN = 400
"""Output tokens after which nothing more of a request is kept."""
MAX_STEPS = 10_000
"""The most steps that are kept in all: a report stays small enough to send."""
SHOWN_TOKENS = 12
"""The most copied tokens kept per draft."""
SHOWN_CURVE = 12


@dataclass(frozen=True, slots=True)
class Loss:
    """Where the time of a policy's tokens went in a cell, in seconds per emitted token."""

    workload: str
    concurrency: int
    policy: str
    spec: str | None
    """The winning setting, where `policy` is a row of hindsight."""
    token_s: float
    reference_token_s: float
    """The same of `REFERENCE`, in the same order."""
    least_s: float
    """The least in hindsight, every request decoded beside copies of itself."""
    parts: Mapping[str, float]
    """What each of `PARTS` lost."""

    @property
    def rest_s(self) -> float:
        """What neither the best choices nor the lost parts account for.

        Prefill, deciding, padding, an unused budget, and a keep-alive for other rows' sake.
        """
        return self.token_s - self.least_s - sum(self.parts.values())


@dataclass(slots=True)
class Passage:
    """A request's steps under a policy at a load, as far as they are kept."""

    request: int
    concurrency: int
    policy: str
    steps: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """What the watched requests of the mix did under a policy at a load; arrays run over
    `request`."""

    concurrency: int
    policy: str
    request: Ints
    steps: Ints
    emitted: Ints
    drafted: Ints
    accepted: Ints


@dataclass(slots=True)
class Observations:
    """All that was watched of an evaluation."""

    requests: Sequence[Request]
    losses: list[Loss] = field(default_factory=list)
    counts: list[RequestCounts] = field(default_factory=list)
    passages: list[Passage] = field(default_factory=list)
    shows_tokens: bool = False
    """Whether the recording holds the tokens that the neural drafter drafted."""
    unwatched: tuple[str, ...] = ()
    """Named policies that take no steps which could be watched."""


def observe(
    player: Player,
    named: Sequence[Contender],
    rows: Iterable[Mapping[str, Any]],
    options: Options,
    progress: Progress = silent,
) -> Observations:
    """Watch the named policies and, by the report's rows, the best static rule in every cell."""
    recording = player.recording
    seen = Observations(recording.requests, shows_tokens=recording.shows_tokens)
    policies = {each.name: player.stepper(each) for each in named}
    seen.unwatched = tuple(name for name, policy in policies.items() if policy is None)
    winners = {
        (row["workload"], row["concurrency"]): row["detail"]["spec"]
        for row in rows
        if row["policy"] == OPPONENT
    }
    every = cells(recording.workloads, options)
    best: dict[int, Hindsight] = {}
    for done, cell in enumerate(every):
        progress("steps", done, len(every))
        workload, load = cell[0] or ALL, cell[1]
        order = _beginning(recording, draw_orders(recording, *cell, options.seed, 1)[0], cell)
        reference = player.play(REFERENCE, order, load)
        if load not in best:
            best[load] = hindsight(recording, load, player.cost, player.cap)
        watched = {name: policy for name, policy in policies.items() if policy is not None}
        if (spec := winners.get((workload, load))) is not None:
            watched.setdefault(OPPONENT, parse_policy(spec))
        for name, policy in watched.items():
            observer = _Observer(player, policy, order, best[load], cell)
            result = player.watch(policy, order, load, observer)
            *lost, least_s = (observer.sums / result.tokens).tolist()
            parts = dict(zip(PARTS, lost, strict=True))
            per_token = 1 / result.tokens_per_s, 1 / reference.tokens_per_s, least_s
            setting = policy.name if name == OPPONENT else None
            seen.losses.append(Loss(workload, load, name, setting, *per_token, parts))
            if cell[0] is None:
                seen.counts.append(observer.counts(name))
                seen.passages += observer.passages(name)
    seen.passages = _kept(seen.passages, recording)
    progress("steps", len(every), len(every))
    return seen


def _beginning(recording: Recording, order: Ints, cell: Cell) -> Ints:
    """As much of an order as is watched."""
    enough = WATCHED_TOKENS if cell[0] is None else WATCHED_TOKENS_OF_WORKLOAD
    before = np.cumsum(recording.columns.length[order])
    return order[: max(int(np.searchsorted(before, enough)) + 1, 3 * cell[1])]


def sample(recording: Recording, order: Ints, concurrency: int) -> Ints:
    """The entries of the order to look into: per workload the requests with the least hashes.

    So the choice rests on nothing that a policy did. The order's last entries are left out, as
    the loop may end before they do.
    """
    early = order[: max(len(order) - concurrency, 1)]
    by_workload: dict[str, list[tuple[str, int]]] = {}
    for request in dict.fromkeys(early.tolist()):
        chosen = recording.requests[request]
        by_workload.setdefault(chosen.workload, []).append((content_hash(chosen), request))
    first = [
        int(np.flatnonzero(early == request)[0])
        for hashed in by_workload.values()
        for _, request in sorted(hashed)[:SAMPLED]
    ]
    return np.array(first, np.int32)


class _Observer:
    """Sums up the steps of one run, and keeps those of the sampled requests."""

    def __init__(
        self, player: Player, policy: Policy, order: Ints, best: Hindsight, cell: Cell
    ) -> None:
        self._player, self._policy, self._order, self._best = player, policy, order, best
        self._load = cell[1]
        self._costs = player.cost.charged_to(Deciding.NOTHING).constants()
        self.sums = np.zeros(len(PARTS) + 1)
        """What the parts lost and the least, in seconds."""
        self._held = np.full(len(order), -1)
        self._counts = np.zeros((4, len(order)), np.int32)
        self._steps: dict[int, list[dict[str, Any]]] = {}
        self._sampled = np.zeros(len(order), np.bool_)
        if cell[0] is None:
            self._sampled[sample(player.recording, order, self._load)] = True

    def __call__(self, seen: SeenStep) -> None:
        """Add a step."""
        step, player, verified = seen.step, self._player, seen.verified
        cut = step.cut
        assert cut is not None and step.shape is not None
        add_losses(
            player.recording.columns,
            self._best,
            seen.request,
            seen.position,
            step.holds_neural,
            self._held[seen.entry],
            cut.neural_len,
            cut.ngram_len,
            verified.accepted,
            step.shape.forwards,
            self._costs,
            self.sums,
        )
        self._held[seen.entry] = step.holds_neural
        counts = self._counts
        counts[0, seen.entry] += 1
        counts[1, seen.entry] += verified.emitted_tokens
        counts[2, seen.entry] += cut.neural_len + cut.ngram_len
        counts[3, seen.entry] += np.minimum(verified.accepted, verified.left)
        for row in np.flatnonzero(self._sampled[seen.entry]).tolist():
            if seen.position[row] < MAX_OUTPUT_SHOWN:
                self._steps.setdefault(int(seen.entry[row]), []).append(self._told(seen, row))

    def counts(self, name: str) -> RequestCounts:
        """What requests did in their first pass, those that had ended."""
        _, first = np.unique(self._order, return_index=True)
        whole = self._player.recording.columns.length[self._order[first]] - 1
        ended = first[self._counts[1, first] == whole]
        return RequestCounts(self._load, name, self._order[ended], *self._counts[:, ended])

    def passages(self, name: str) -> list[Passage]:
        """The sampled requests, in the order of their workloads and hashes."""
        entries = [each for each in np.flatnonzero(self._sampled) if int(each) in self._steps]
        return [
            Passage(int(self._order[e]), self._load, name, self._steps[int(e)]) for e in entries
        ]

    def _told(self, seen: SeenStep, row: int) -> dict[str, Any]:
        """What there is to tell of a row's step; tokens are ids."""
        recording, step, verified = self._player.recording, seen.step, seen.verified
        columns, cut, shape = recording.columns, step.cut, step.shape
        assert cut is not None and shape is not None
        request, position = int(seen.request[row]), int(seen.position[row])
        place = int(columns.offset[request]) + position
        known = int(columns.prompt[request]) + position
        neural_len, ngram_len = int(cut.neural_len[row]), int(cut.ngram_len[row])
        told: dict[str, Any] = {
            "position": position,
            "neural_len": neural_len,
            "ngram_len": ngram_len,
            "accepted": int(min(verified.accepted[row], verified.left[row])),
            "emitted": int(verified.emitted_tokens[row]),
            "rows": len(seen.request),
            "forwards": int(shape.forwards),
            "step_s": float(seen.step_s),
            "holds_neural": bool(step.holds_neural[row]),
            "match": int(columns.match[place]),
            "candidate": self._copied(
                request, known, int(step.start[row]), min(int(step.available[row]), SHOWN_TOKENS)
            ),
            "candidate_right": int(columns.run[place]),
            "neural_right": int(columns.neural[place]),
        }
        if recording.shows_tokens:
            drafted = recording.drafted[place, : recording.neural_cap]
            told["drafted"] = drafted[drafted >= 0].tolist()
        if ngram_len > 0:
            copied = min(ngram_len, SHOWN_TOKENS)
            told["copied"] = self._copied(request, known, int(cut.start[row]), copied)
        if isinstance(self._policy, LearnedPolicy):
            told["reasons"] = self._reasons(row, step.forwards)
        return told

    def _reasons(self, row: int, forwards: int) -> dict[str, Any]:
        assert isinstance(self._policy, LearnedPolicy)
        reasons = reasons_of(self._policy, row, forwards)._asdict()
        for curve in ("neural", "ngram"):
            known = np.round(100 * reasons[curve][:SHOWN_CURVE]).astype(int)
            reasons[curve] = known[: int(np.count_nonzero(known)) + 1].tolist()
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in reasons.items()}

    def _copied(self, request: int, known: int, start: int, count: int) -> list[int]:
        """So many tokens from `start` on; behind the known text lie the drafted ones."""
        recording = self._player.recording
        if start < 0:
            return []
        base, tokens = int(recording.arrays.text_start[request]), []
        position = known - int(recording.columns.prompt[request])
        for place in range(start, start + count):
            if place < known or not recording.shows_tokens:
                tokens.append(int(recording.arrays.text[base + place]))
            elif place - known < recording.drafted.shape[1]:
                i = int(recording.columns.offset[request]) + position
                tokens.append(int(recording.drafted[i, place - known]))
        return tokens


def _kept(passages: Sequence[Passage], recording: Recording) -> list[Passage]:
    """As many as `MAX_STEPS` allows: the first of every workload, load and policy come first."""
    rank: dict[tuple[str, int, str], int] = {}
    ranked: list[tuple[int, int]] = []
    for passage in passages:
        key = (recording.requests[passage.request].workload, passage.concurrency, passage.policy)
        rank[key] = rank.get(key, -1) + 1
        ranked.append((rank[key], len(ranked)))
    kept: list[int] = []
    total = 0
    for _, place in sorted(ranked):
        total += len(passages[place].steps)
        if total > MAX_STEPS and kept:
            break
        kept.append(place)
    return [passages[place] for place in sorted(kept)]
