"""The matches of `draft.index`, in the engine's buffer of tokens where it lies, and in the ring.

`scan` divides each text, or the ring, among programs, of which each leaves its best places; whoever
needs the match joins them (`joined_match`, `better_match`). A place is one number: how many tokens
before it are the text's last ones, and then the place itself, so that the greatest numbers are the
latest of the longest.

Behind drafted tokens the text is scanned again. By then it lies in the cache, and nothing has to
be kept per token from one scan to the next.
"""

from __future__ import annotations

import triton
import triton.language as tl

from adaspec.kernels.layout import (
    IN_RING,
    LONGEST_COPY,
    LONGEST_NEURAL,
    MAX_MATCH,
    MOST_OCCURRENCES,
    PLACE_BITS,
    PLACE_MASK,
    TIMES,
    device,
)

STRIDE = tl.constexpr(4)
"""The tokens that are compared before it is asked whether any place still goes on."""
NO_TOKEN = tl.constexpr(-2)
"""What lies outside of the text; drafters that give no token say -1."""


@triton.jit
def token_at(
    text: tl.tensor,
    known: tl.tensor,
    drafts: tl.tensor,
    newest: tl.tensor,
    depth: tl.tensor,
    place: tl.tensor,
    behind_drafts: tl.constexpr,
) -> tl.tensor:
    """The tokens at places of a text that goes on with `depth` drafted ones, the last `newest`."""
    token = tl.load(text + place, mask=(place >= 0) & (place < known), other=NO_TOKEN)
    if behind_drafts:
        at = place - known
        earlier = tl.load(drafts + at, mask=(at >= 0) & (at < depth - 1), other=NO_TOKEN)
        token = tl.where(at >= 0, earlier, token)
        token = tl.where((at >= 0) & (at == depth - 1), newest, token)
    return token


@device(
    "draft.matches.common_end",
    do_not_specialize=["depth"],
    do_not_specialize_on_alignment=["slots", "context_tokens", "newest", "newest_stride"],
)
def scan(
    tokens: tl.tensor,
    tokens_stride: tl.tensor,
    slots: tl.tensor,
    context_tokens: tl.tensor,
    drafts: tl.tensor,
    newest: tl.tensor,
    newest_stride: tl.tensor,
    depth: tl.tensor,
    ring: tl.tuple,
    ring_tokens: tl.tensor,
    keys: tl.tensor,
    behind_drafts: tl.constexpr,
    in_ring: tl.constexpr,
    block_places: tl.constexpr,
) -> None:
    """Fill in the best places for each row's text behind `depth` drafted tokens, per program.

    They are in that text or, `in_ring`, among the last `ring_tokens` of the ring.
    """
    row, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    slot = tl.load(slots + row).to(tl.int64)
    known = tl.load(context_tokens + slot).to(tl.int32)
    text, drafted = tokens + slot * tokens_stride, drafts + row * LONGEST_NEURAL
    token = tl.full((), NO_TOKEN, tl.int32)
    length = known
    if behind_drafts:
        token = tl.load(newest + row * newest_stride).to(tl.int32)
        length = known + depth
    first, end = tl.full((), 0, tl.int32), length
    if in_ring:
        end = tl.load(ring.known)
        first = tl.maximum(end - ring_tokens, 0)
        end = tl.where(tl.load(ring.readers + slot), end, first)
    lanes = tl.arange(0, MOST_OCCURRENCES)
    best = -1 - lanes
    least = tl.min(best, 0)
    # From the end, as later places displace earlier ones.
    block = tl.cdiv(end, block_places) - 1 - split
    while (block >= 0) & ((block + 1) * block_places > first):
        places = block * block_places + tl.arange(0, block_places)
        repeated = tl.zeros((block_places,), tl.int32)
        equal = places < end
        if in_ring:
            follower = tl.load(ring.tokens + places, mask=equal, other=NO_TOKEN)
            equal = equal & (places > first) & (follower >= 0)
        compared = tl.full((), 0, tl.int32)
        while (compared < MAX_MATCH) & (tl.max(equal.to(tl.int32), 0) > 0):
            for step in tl.static_range(STRIDE):
                back = compared + step + 1
                last = token_at(text, known, drafted, token, depth, length - back, behind_drafts)
                if in_ring:
                    inside = (places - back >= first) & (places < end)
                    other = tl.load(ring.tokens + places - back, mask=inside, other=NO_TOKEN)
                else:
                    at = places - back
                    other = token_at(text, known, drafted, token, depth, at, behind_drafts)
                equal = equal & (places - first >= back) & (other == last)
                repeated += equal.to(tl.int32)
            compared += STRIDE
        found = tl.where(repeated > 0, (repeated << PLACE_BITS) | places, -1 - MOST_OCCURRENCES)
        most = tl.max(found, 0)
        while most > least:
            best = tl.where(best == least, most, best)
            least = tl.min(best, 0)
            found = tl.where(found == most, -1 - MOST_OCCURRENCES, found)
            most = tl.max(found, 0)
        block -= splits
    tl.store(keys + (row * splits + split) * MOST_OCCURRENCES + lanes, best)


@triton.jit
def _latest(keys: tl.tensor, row: tl.tensor, splits: tl.constexpr) -> tl.tuple:
    """The length of the longest match that the scan's programs left, and its latest places.

    The places are in the order of their age, the latest first; -1 behind them.
    """
    found = tl.load(
        keys + row * splits * MOST_OCCURRENCES + tl.arange(0, splits * MOST_OCCURRENCES)
    )
    lanes = tl.arange(0, MOST_OCCURRENCES)
    best = tl.full((MOST_OCCURRENCES,), -1, tl.int32)
    for step in tl.static_range(MOST_OCCURRENCES):
        most = tl.max(found, 0)
        best = tl.where(lanes == step, most, best)
        found = tl.where(found == most, -1, found)
    longest = tl.maximum(tl.max(best, 0), 0) >> PLACE_BITS
    occurs = (best > 0) & ((best >> PLACE_BITS) == longest)
    return longest, tl.where(occurs, best & PLACE_MASK, -1)


@device("draft.matches.search")
def joined_match(
    keys: tl.tensor,
    row: tl.tensor,
    text: tl.tensor,
    known: tl.tensor,
    drafts: tl.tensor,
    newest: tl.tensor,
    depth: tl.tensor,
    behind_drafts: tl.constexpr,
    splits: tl.constexpr,
) -> tl.tuple:
    """A row's match, joined from what the scan's programs left: the fields in `layout`."""
    longest, places = _latest(keys, row, splits)
    followers = token_at(text, known, drafts, newest, depth, places, behind_drafts)
    start, occurs = tl.max(places, 0), places >= 0
    first = tl.sum(tl.where(tl.arange(0, MOST_OCCURRENCES) == 0, followers, 0), 0)
    votes = tl.sum((occurs & (followers == first)).to(tl.int32), 0)
    occurrences = tl.sum(occurs.to(tl.int32), 0)
    follower = tl.where(start >= 0, first, -1)
    available = tl.where(start >= 0, known + depth - start, 0)
    return longest, start, votes, occurrences, available, follower


@device("draft.matches.search_ring")
def better_match(
    own: tl.tuple, ring: tl.tuple, keys: tl.tensor, row: tl.tensor, splits: tl.constexpr
) -> tl.tuple:
    """A row's match in the ring where that is better than the own text's, else that."""
    length, start, votes, occurrences, available, follower = own
    longest, places = _latest(keys, row, splits)
    if longest // TIMES > length:
        lanes, occurs = tl.arange(0, MOST_OCCURRENCES), places >= 0
        followers = tl.load(ring.tokens + places, mask=occurs, other=NO_TOKEN)
        both = occurs[:, None] & occurs[None, :]
        counts = tl.sum((both & (followers[:, None] == followers[None, :])).to(tl.int32), 1)
        # The earliest in the order are the latest occurrences.
        rank = tl.where(occurs, counts * MOST_OCCURRENCES + MOST_OCCURRENCES - 1 - lanes, -1)
        chosen = rank == tl.max(rank, 0)
        place = tl.sum(tl.where(chosen, places, 0), 0)
        steps = tl.arange(0, LONGEST_COPY)
        inside = place + steps < tl.load(ring.known)
        ahead = tl.load(ring.tokens + place + steps, mask=inside, other=NO_TOKEN)
        ends = tl.min(tl.where(ahead < 0, steps, LONGEST_COPY), 0)
        length, start = (longest // TIMES).to(length.dtype), (place + IN_RING).to(start.dtype)
        votes = tl.max(counts, 0).to(votes.dtype)
        occurrences = tl.sum(occurs.to(tl.int32), 0).to(occurrences.dtype)
        first = tl.sum(tl.where(chosen, followers, 0), 0)
        available, follower = ends.to(available.dtype), first.to(follower.dtype)
    return length, start, votes, occurrences, available, follower


@device("draft.matches.copy_tokens")
def token_in_either(ring: tl.tuple, token: tl.tensor, place: tl.tensor) -> tl.tensor:
    """The token at each place: the ring's from `IN_RING` on, else the given one."""
    there = place >= IN_RING
    return tl.where(there, tl.load(ring.tokens + place - IN_RING, mask=there, other=-1), token)
