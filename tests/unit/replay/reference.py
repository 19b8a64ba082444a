"""The replay, slow and obvious: what the design says, in plain Python.

Written from the design's sections 3 to 7 before the replay was read, so that the two can disagree.
Nothing here knows of paths, recordings or compiled code: every step scans the text again.
"""

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field

LONGEST_MATCH = 32
LENGTHS = (2, 3, 4, 5, 7, 10, 16, 24)
"""Where other kinds of matches begin, by length."""


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
    in_ring: bool = False


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
    return Match(longest // 2, copy, most, len(latest), True)


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


class Online:
    """`online:K`: which of the copies of all rows are verified.

    How likely a token is follows from what was accepted of those at its place behind matches of
    about the length, of one's own text or the ring. An async engine verifies as many as would have
    been best of the mean of what was offered before.
    """

    def __init__(self, longest, concurrency, cost, is_async):
        self.longest, self.cost, self.is_async = longest, cost, is_async
        self.tried, self.hits = Counter(), Counter()
        """By kind and place, beyond the 2 and 1.4 imagined at first, which fade as all else."""
        self.mean, self.rows = [0.0] * concurrency * longest, 0.0

    def decide(self, asked):
        """The steps of these (request, position), and how many tokens are paid for."""
        matches = [look_up(each.prompt + each.output[:position]) for each, position in asked]
        kinds = [(match.in_ring, sum(match.length >= end for end in LENGTHS)) for match in matches]
        copies = [match.copy[: self.longest] for match in matches]
        survival = {}
        for row, (kind, copied) in enumerate(zip(kinds, copies, strict=True)):
            likely = 1.0
            for place in range(len(copied)):
                tried, hits = self.tried.get((kind, place), 2.0), self.hits.get((kind, place), 1.4)
                likely *= hits / tried
                survival[row, place] = likely
        offered, rows = sorted(survival.values(), reverse=True), len(asked)
        context = sum(len(request.prompt) + position for request, position in asked)
        paid, beside = 0, (context, rows)
        if self.is_async and self.rows:
            stretch = rows / self.rows
            some = range(int(len(self.mean) * stretch))
            tokens = rows + self.best([self.mean[int((n + 0.5) / stretch)] for n in some], *beside)
            captured = [size for size in self.cost.tokens if size <= self.cost.largest_graph]
            count = paid = min([size for size in captured if size >= tokens] or [tokens]) - rows
        else:
            count = self.best(offered, *beside)
        share = 0.3 if self.rows else 1.0
        for at, now in enumerate(offered + [0.0] * (len(self.mean) - len(offered))):
            if at >= len(offered) and self.mean[at] <= 1e-4:
                self.mean[at] = 0.0
                break
            self.mean[at] += share * (now - self.mean[at])
        self.rows += share * (rows - self.rows)
        likeliest = sorted(survival, key=lambda place: (-survival[place], place))[:count]
        kept = Counter(row for row, _ in likeliest)
        steps = []
        for row, (request, position) in enumerate(asked):
            copied = copies[row][: kept[row]]
            steps.append(Step(0, len(copied), verified(request, position, 0, copied), 0))
        self.learn(kinds, steps)
        return steps, paid

    def best(self, offered, context, rows):
        """How many of these bring most tokens per second."""
        sums = [float(rows), *itertools.accumulate(offered, initial=float(rows))][1:]
        speeds = [
            tokens / step_seconds(self.cost, rows, rows + n, context, 0, False)
            for n, tokens in enumerate(sums)
        ]
        return speeds.index(max(speeds))

    def learn(self, kinds, steps):
        for counts, at_first in ((self.tried, 1e-3), (self.hits, 0.7e-3)):
            for kind in itertools.product((False, True), range(len(LENGTHS) + 1)):
                for place in range(self.longest):
                    now = counts.get((kind, place), 2000 * at_first)
                    counts[kind, place] = at_first + (now - at_first) * 0.999
        for kind, step in zip(kinds, steps, strict=True):
            for place in range(min(step.ngram, step.accepted + 1)):
                self.tried[kind, place] += 1
                self.hits[kind, place] += step.accepted > place


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
    decide_all=None,
):
    """The loop: a new request enters as one ends, until a slot cannot be refilled.

    `decide` says what a request does at a position, or `decide_all` the steps of all and the tokens
    paid for. Where it is said when each `comes`, none enters before, and the loop ends with the
    last of them.
    With `prefill`, the prompts of those that enter are read in the step that follows, or in one of
    their own before it if nobody else runs. Every row verifies at least `least` drafted
    tokens, be they none of its own, and every step runs at least `least_runs` forwards.
    """
    waiting, played = list(enumerate(order)), Played()
    slots: list[Slot | None] = []
    while True:
        entered = []

        def next_slot(entered=entered):
            now = played.time_s
            if not waiting or (comes is not None and comes[waiting[0][0]] > now):
                return None
            at, request = waiting.pop(0)
            entered.append(Slot(request, 1, now if comes is None else comes[at], now, now))
            return entered[-1]

        # Others enter in the places of those that ended; what is left open the last ones fill.
        slots = [slot or next_slot() for slot in slots]
        for at in range(len(slots) - 1, -1, -1):
            if slots[at] is None:
                slots[at] = slots[-1]
                slots.pop()
        if not slots and waiting and comes is not None:
            played.time_s = max(played.time_s, comes[waiting[0][0]])
        while len(slots) < concurrency and (slot := next_slot()):
            slots.append(slot)
        if not slots or (comes is None and len(slots) < concurrency):
            return played
        asked = [(requests[slot.request], slot.position) for slot in slots]
        if decide_all is None:
            steps, paid = [decide(*each) for each in asked], least * len(asked)
        else:
            steps, paid = decide_all(asked)
        tokens = len(slots) + max(sum(step.draft for step in steps), paid)
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
        for at, (slot, step) in enumerate(zip(list(slots), steps, strict=True)):
            left = len(requests[slot.request].output) - slot.position
            emitted = min(step.accepted + 1, left)
            played.tokens += emitted
            played.accepted += step.accepted
            played.drafted += step.draft
            played.row_steps += 1
            slot.position += emitted
            if emitted == left:
                slots[at] = None
                behind_first = len(requests[slot.request].output) - 1
                played.first_s.append(slot.first - slot.comes)
                played.token_s.append((played.time_s - slot.read) / behind_first)
                played.request_s.append(played.time_s - slot.comes)


def close(a, b):
    """Equal but for the order of floating-point sums."""
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-15)
