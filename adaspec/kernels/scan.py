"""The matches of `draft.index`, in the engine's buffer of tokens where it lies.

`scan` divides each text among programs, of which each leaves its best places; whoever needs the
match joins them (`joined_match`). A place is one number: how many tokens before it are the text's
last ones, and then the place itself, so that the greatest numbers are the latest of the longest.

Behind drafted tokens the text is scanned again. By then it lies in the cache, and nothing has to
be kept per token from one scan to the next.
"""

from __future__ import annotations

import triton
import triton.language as tl

from adaspec.kernels.layout import LONGEST_NEURAL, MAX_MATCH, PLACE_BITS, PLACE_MASK, RING

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


@triton.jit(
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
    keys: tl.tensor,
    behind_drafts: tl.constexpr,
    block_places: tl.constexpr,
) -> None:
    """Fill in the best places of each row's text behind `depth` drafted tokens, per program."""
    row, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    slot = tl.load(slots + row).to(tl.int64)
    known = tl.load(context_tokens + slot).to(tl.int32)
    text, drafted = tokens + slot * tokens_stride, drafts + row * LONGEST_NEURAL
    token = tl.full((), NO_TOKEN, tl.int32)
    length = known
    if behind_drafts:
        token = tl.load(newest + row * newest_stride).to(tl.int32)
        length = known + depth
    lanes = tl.arange(0, RING)
    best = -1 - lanes
    least = tl.min(best, 0)
    # From the end, as later places displace earlier ones.
    block = tl.cdiv(length, block_places) - 1 - split
    while block >= 0:
        places = block * block_places + tl.arange(0, block_places)
        repeated = tl.zeros((block_places,), tl.int32)
        equal = places < length
        compared = tl.full((), 0, tl.int32)
        while (compared < MAX_MATCH) & (tl.max(equal.to(tl.int32), 0) > 0):
            for step in tl.static_range(STRIDE):
                back = compared + step + 1
                last = token_at(text, known, drafted, token, depth, length - back, behind_drafts)
                other = token_at(text, known, drafted, token, depth, places - back, behind_drafts)
                equal = equal & (places >= back) & (other == last)
                repeated += equal.to(tl.int32)
            compared += STRIDE
        found = tl.where(repeated > 0, (repeated << PLACE_BITS) | places, -1 - RING)
        most = tl.max(found, 0)
        while most > least:
            best = tl.where(best == least, most, best)
            least = tl.min(best, 0)
            found = tl.where(found == most, -1 - RING, found)
            most = tl.max(found, 0)
        block -= splits
    tl.store(keys + (row * splits + split) * RING + lanes, best)


@triton.jit
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
    found = tl.load(keys + row * splits * RING + tl.arange(0, splits * RING))
    lanes = tl.arange(0, RING)
    best = tl.full((RING,), -1, tl.int32)
    for step in tl.static_range(RING):
        most = tl.max(found, 0)
        best = tl.where(lanes == step, most, best)
        found = tl.where(found == most, -1, found)
    longest = tl.maximum(tl.max(best, 0), 0) >> PLACE_BITS
    occurs = (best > 0) & ((best >> PLACE_BITS) == longest)
    places = tl.where(occurs, best & PLACE_MASK, -1)
    followers = token_at(text, known, drafts, newest, depth, places, behind_drafts)
    start = tl.max(places, 0)
    first = tl.sum(tl.where(lanes == 0, followers, 0), 0)
    votes = tl.sum((occurs & (followers == first)).to(tl.int32), 0)
    occurrences = tl.sum(occurs.to(tl.int32), 0)
    follower = tl.where(start >= 0, first, -1)
    available = tl.where(start >= 0, known + depth - start, 0)
    return longest, start, votes, occurrences, available, follower
