"""The replay, slow and obvious: what the design says, in plain Python.

Written from the design's sections 3 to 7 before the replay was read, so that the two can disagree.
Nothing here knows of paths, recordings or compiled code: every step scans the text again.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

LONGEST_MATCH = 32


@dataclass(frozen=True)
class Request:
    """One request: `accepted[p]` neural tokens are right at position p, drafted `drafted[p]`."""

    prompt: list[int]
    output: list[int]
    accepted: list[int]
    drafted: list[list[int]] | None = None
    probability: list[list[float]] | None = None
    """What the drafter says of each of `drafted`."""


@dataclass(frozen=True)
class Match:
    """A look-up's answer: `length` tokens matched, and `copy` is what followed them.

    `votes` of the latest `occurrences` that matched so far say the same next.
    """

    length: int
    copy: list[int]
    votes: int = 0
    occurrences: int = 0


NO_MATCH = Match(0, [])


RING: list[int] = []
"""The ring's tokens, -1 behind each answer."""


def look_up(text):
    """The longest match, its most recent occurrence, what follows it; or that in the ring."""
    known, own = list(text), NO_MATCH
    for length in range(min(LONGEST_MATCH, len(known) - 1), 0, -1):
        tail = known[-length:]
        ends = [at for at in range(length, len(known)) if known[at - length : at] == tail]
        if ends:
            latest = [known[end] for end in ends[-8:]]
            own = Match(length, known[ends[-1] :], latest.count(latest[-1]), len(latest))
            break
    there = ring_match(RING, known)
    return there if there.length > own.length else own


def ring_match(ring, text):
    """The longest match in the ring: the latest of those that say what most of the latest 8 say.

    Its length counts half.
    """
    longest, places = 0, []
    for place in range(1, len(ring)):
        length = 0
        while (
            length < min(place, len(text), LONGEST_MATCH)
            and ring[place - 1 - length] == text[-1 - length]
        ):
            length += 1
        if ring[place] >= 0 and length >= max(longest, 1):
            places = [place] if length > longest else [*places, place]
            longest = length
    if longest < 2:
        return NO_MATCH
    latest = places[:-9:-1]
    votes = Counter(ring[place] for place in latest)
    most = max(votes.values())
    place = next(each for each in latest if votes[ring[each]] == most)
    copy = list(ring[place : ring.index(-1, place)])[:64]
    return Match(longest // 2, copy, most, len(latest))


@dataclass(frozen=True)
class Step:
    """What one request verifies in one step and what comes of it."""

    neural: int
    ngram: int
    accepted: int
    forwards: int
    """Neural forwards that this request asks for; the batch runs the most asked."""

    @property
    def draft(self):
        return self.neural + self.ngram


def common(draft, truth):
    """Leading tokens of the draft that are right."""
    count = 0
    for said, came in zip(draft, truth, strict=False):
        if said != came:
            break
        count += 1
    return count


def splice_match(request, position, neural):
    """The look-up behind `neural` drafted tokens; at the output's end there is none to pay for.

    Behind a wrong draft there is no end: the drafted text goes where the output never went.
    """
    ended = position + neural >= len(request.output)
    if request.drafted is None:
        if ended:
            return NO_MATCH
        return look_up(request.prompt + request.output[: position + neural])
    said = request.drafted[position][:neural]
    if ended and said == request.output[position : position + neural]:
        return NO_MATCH
    return look_up(request.prompt + request.output[:position] + said)


def verified(request, position, neural, copied):
    """Accepted tokens of `neural` drafted tokens and `copied` behind them."""
    right = min(request.accepted[position], neural)
    if right < neural:
        return right
    return neural + common(copied, request.output[position + neural :])


def static_step(request, position, rule, cap):
    """One step of a static rule on one request."""
    match = look_up(request.prompt + request.output[:position])
    neural = min(rule.neural_len, cap)
    if rule.ngram_len > 0 and match.length >= rule.min_match:
        copied = match.copy[: min(rule.ngram_len, cap)]
        forwards = neural if rule.always_drafts else 0
        return Step(0, len(copied), verified(request, position, 0, copied), forwards)
    copied = []
    if neural > 0 and rule.splice_len > 0:
        behind = splice_match(request, position, neural)
        if behind.length >= rule.splice_min_match:
            copied = behind.copy[: min(rule.splice_len, cap - neural)]
    return Step(neural, len(copied), verified(request, position, neural, copied), neural)


def table_seconds(cost, tokens):
    """The table: the next captured size, or a line between steps outside the graphs."""
    steps = list(zip(cost.tokens, cost.seconds, strict=True))
    if tokens <= cost.largest_graph:
        return min((size, seconds) for size, seconds in steps if size >= tokens)[1]
    outside = [step for step in steps if step[0] > cost.largest_graph]
    above = next((at for at, (size, _) in enumerate(outside) if size >= tokens), len(outside) - 1)
    at = max(above, 1)
    (low, low_s), (high, high_s) = outside[at - 1], outside[at]
    return low_s + (high_s - low_s) / (high - low) * (tokens - low)


def step_seconds(cost, rows, tokens, context, forwards, holds_neural, draft_prompts=0):
    """The cost formula of design section 5."""
    if holds_neural:
        forwards = max(forwards, 1)
    outside = forwards > 0 and 0 < cost.largest_graph < tokens
    each = cost.forward_s + cost.forward_per_row_s * rows + cost.forward_context_s * context
    return (
        table_seconds(cost, tokens)
        + cost.context_s * context
        + forwards * each
        + (cost.outside_graphs_s if outside else 0.0)
        + cost.draft_prompt_s * draft_prompts
    )


@dataclass
class Played:
    """What a run of the loop comes to."""

    tokens: int = 0
    time_s: float = 0.0
    accepted: int = 0
    drafted: int = 0
    row_steps: int = 0
    steps: int = 0
    neural_steps: int = 0
    first_s: list[float] = field(default_factory=list)
    """Of each that finished, seconds from coming to its first token."""
    token_s: list[float] = field(default_factory=list)
    """Seconds from its prompt's end to leaving, per emitted token."""
    request_s: list[float] = field(default_factory=list)
    """Seconds from coming to leaving."""
    gaps: list[float] = field(default_factory=list)
    """Seconds between deliveries."""


@dataclass
class Slot:
    request: int
    position: int
    comes: float
    read: float
    """When its prompt had been read."""
    first: float
    """When its first token came."""


def play(
    requests,
    order,
    concurrency,
    cost,
    decide,
    holds_neural,
    prefill=False,
    least=0,
    least_runs=0,
    comes=None,
):
    """The loop: a new request enters as one ends, until a slot cannot be refilled.

    Where it is said when each `comes`, none enters before, and the loop ends with the last of them.
    With `prefill`, the prompts of those that enter are read in the step that follows, or in one of
    their own before it if nobody else runs. Every row verifies at least `least` drafted
    tokens, be they none of its own, and every step runs at least `least_runs` forwards.
    """
    waiting, played = list(enumerate(order)), Played()
    slots: list[Slot] = []
    while True:
        now, entered = played.time_s, []
        if not slots and waiting and comes is not None:
            now = played.time_s = max(now, comes[waiting[0][0]])
        while waiting and len(slots) < concurrency:
            at, request = waiting[0]
            if comes is not None and comes[at] > now:
                break
            del waiting[0]
            entered.append(Slot(request, 1, now if comes is None else comes[at], now, now))
            slots.append(entered[-1])
        if not slots or (comes is None and len(slots) < concurrency):
            return played
        steps = [decide(requests[slot.request], slot.position) for slot in slots]
        tokens = sum(1 + max(step.draft, least) for step in steps)
        context = sum(len(requests[slot.request].prompt) + slot.position for slot in slots)
        ran = max(least_runs, *(step.forwards for step in steps))
        seconds = step_seconds(cost, len(slots), tokens, context, ran, holds_neural)
        prompts = sum(len(requests[slot.request].prompt) for slot in entered) if prefill else 0
        reading_s, alone = 0.0, len(entered) == len(slots)
        if prompts:
            drafts = prompts if holds_neural else 0
            if alone:
                reading_s = table_seconds(cost, prompts) + cost.draft_prompt_s * drafts
            else:
                shape = len(slots), tokens + prompts, context, ran, holds_neural, drafts
                reading_s = step_seconds(cost, *shape) - seconds
            for slot in entered:
                slot.read += reading_s
                slot.first += reading_s if alone else reading_s + seconds
        others = len(slots) - len(entered)
        played.gaps += [seconds] * len(entered) + [seconds + reading_s] * others
        played.time_s += seconds + reading_s
        played.steps += 1
        played.neural_steps += least_runs > 0 or any(step.forwards > 0 for step in steps)
        for slot, step in zip(list(slots), steps, strict=True):
            left = len(requests[slot.request].output) - slot.position
            emitted = min(step.accepted + 1, left)
            played.tokens += emitted
            played.accepted += step.accepted
            played.drafted += step.draft
            played.row_steps += 1
            slot.position += emitted
            if emitted == left:
                slots.remove(slot)
                behind_first = len(requests[slot.request].output) - 1
                played.first_s.append(slot.first - slot.comes)
                played.token_s.append((played.time_s - slot.read) / behind_first)
                played.request_s.append(played.time_s - slot.comes)


def close(a, b):
    """Equal but for the order of floating-point sums."""
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-15)
