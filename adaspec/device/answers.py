"""The answers of earlier requests on a device, and the look-up of `draft.answers` in them.

The host stores answers in its own index. The words that it changes follow to the device, so that
the same index lies there. As in `device.lookup`, shapes are fixed and nothing is read back.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adaspec.device.lookup import Match, Text, copies, tail, tokens_at
from adaspec.draft.answers import (
    AGREEING,
    AHEAD,
    BYTES_PER_TOKEN,
    HEAD,
    HEADER_WORDS,
    IN_ANSWERS,
    LONGEST_COPY,
    LONGEST_MATCH,
    OCCURRENCES,
    SIZES,
    WALK,
    WORDS_OF_BUCKET,
    AnswerIndex,
)

FACTORS = tuple(number - (1 << 64) for number in (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93))
"""The constants of the index's hash as signed numbers: products wrap around alike."""
_LEVELS = len(SIZES)


class Answers(NamedTuple):
    """A `draft.answers.AnswerIndex` on a device, and who may look up whose answers."""

    words: Tensor
    """(words,) int32 those of the index."""
    owners: Tensor
    """(slots,) int32 whose answers the request in each slot knows; 0: nobody's."""

    @classmethod
    def of(cls, index: AnswerIndex, slots: int, device: torch.device) -> Answers:
        """What an index holds now; it takes all of its memory at once."""
        words = torch.zeros(len(index.words), dtype=torch.int32, device=device)
        count = len(index.words) if index.tokens else HEADER_WORDS
        words[:count] = torch.from_numpy(index.words[:count]).to(device)
        return cls(words, torch.zeros(slots, dtype=torch.int32, device=device))

    @property
    def capacity(self) -> int:
        """The tokens that fit."""
        return (len(self.words) - HEADER_WORDS) * 4 // BYTES_PER_TOKEN

    def write(self, places: Tensor, words: Tensor) -> None:
        """Take in words that the host's index has at these places."""
        self.words.index_copy_(0, places, words)


def best_match(own: Match, answers: Answers | None, slots: Tensor, text: Text) -> Match:
    """The match among the answers where it is better than the own text's, else that."""
    if answers is None:
        return own
    found = look_up_answers(answers, slots, text)
    agreed = (found.seen >= AGREEING) & (4 * found.agree >= 3 * found.seen)
    taken = found.length > own.length.where(agreed | (own.length == 0), own.length + AHEAD)
    return Match(*(other.where(taken, mine) for other, mine in zip(found, own, strict=True)))


def copied(text: Text, answers: Answers | None, start: Tensor, count: int) -> Tensor:
    """(rows, count) the tokens from `start` on, in the text or in an answer; -1 behind its end."""
    if answers is None:
        return copies(text, start, count)
    steps = torch.arange(count, device=start.device)
    there = _tokens(answers, (start - IN_ANSWERS)[:, None] + steps)
    there = there.where((there >= 0).long().cumprod(1).bool(), -1)
    return there.where((start >= IN_ANSWERS)[:, None], copies(text, start, count))


def token_in_either(text: Text, answers: Answers | None, places: Tensor) -> Tensor:
    """(rows, ..) the tokens at these places, `IN_ANSWERS` and more in answers; -1 outside."""
    own = tokens_at(text, places)
    if answers is None:
        return own
    return _tokens(answers, places - IN_ANSWERS).where(places >= IN_ANSWERS, own)


def look_up_answers(answers: Answers, slots: Tensor, text: Text) -> Match:
    """What `draft.answers.find_answer` says of each row's text; length 0 where there is nothing."""
    capacity, owner = answers.capacity, answers.owners[slots].long()
    last = tail(text, LONGEST_MATCH).flip(1)
    key, keys = _mixed(owner), []
    for back in range(SIZES[-1]):
        key = _mixed(key ^ last[:, back])
        if back + 1 in SIZES:
            keys.append(key)
    levels = torch.arange(_LEVELS, device=slots.device)
    bucket = (_shifted(torch.stack(keys, 1), 32) * capacity) >> 32
    tables = HEADER_WORDS + (2 + _LEVELS) * capacity
    buckets = answers.words[
        tables
        + (levels * capacity + bucket)[:, :, None] * WORDS_OF_BUCKET
        + torch.arange(WORDS_OF_BUCKET, device=slots.device)
    ]
    later, earlier = (buckets.long() - 1).unbind(2)
    place = later.where(_alike(answers, later, last), earlier)
    order = torch.arange(OCCURRENCES, device=slots.device)
    places = torch.full((len(slots), _LEVELS, OCCURRENCES), -1, device=slots.device)
    head = answers.words[HEAD].long()
    seen, age = torch.zeros_like(place), torch.zeros_like(place)
    goes_on = torch.ones_like(place, dtype=torch.bool)
    owners = HEADER_WORDS + capacity
    for _ in range(WALK):
        ago = head - place + torch.where(place < head, 0, capacity)
        goes_on = goes_on & (ago > age) & _alike(answers, place, last)
        age = ago
        inside = place.clamp(min=0)
        counts = goes_on & (answers.words[owners + inside] == owner[:, None])
        counts &= seen < OCCURRENCES
        here = counts[:, :, None] & (order == seen[:, :, None])
        places = place[:, :, None].where(here, places)
        seen = seen + counts
        chain = HEADER_WORDS + (2 + levels) * capacity
        place = answers.words[chain + inside].long().where(goes_on, -1)
    level = ((levels + 1) * (seen > 0)).amax(1)
    pick = (level - 1).clamp(min=0)[:, None]
    seen = seen.gather(1, pick)[:, 0]
    places = places.gather(1, pick[:, :, None].expand(-1, 1, OCCURRENCES))[:, 0]
    place, agree = _followed(answers, places)
    found = level > 0
    length = _repeated(answers, place[:, None], last)[:, 0]
    ahead = _tokens(answers, place[:, None] + torch.arange(LONGEST_COPY, device=slots.device))
    available = (ahead >= 0).long().cumprod(1).sum(1)
    return Match(
        length=length.where(found, 0),
        start=(IN_ANSWERS + place).where(found, -1),
        agree=agree.where(found, 0),
        seen=seen,
        available=available.where(found, 0),
        follower=ahead[:, 0].where(found, -1),
    )


def _followed(answers: Answers, places: Tensor) -> tuple[Tensor, Tensor]:
    """The place whose tokens most occurrences say, and how many say the first."""
    steps = torch.arange(LONGEST_COPY, device=places.device)
    order = torch.arange(OCCURRENCES, device=places.device)
    ahead = _tokens(answers, places.clamp(min=0)[:, :, None] + steps)
    alive, goes_on = places >= 0, places[:, :1] >= 0
    agree = alive.sum(1)
    for step in range(LONGEST_COPY):
        token = ahead[:, :, step]
        says = alive & (token >= 0)
        same = (token[:, :, None] == token[:, None, :]) & says[:, None, :]
        # The earliest in the order are the latest occurrences.
        votes = (same.sum(2) * OCCURRENCES + OCCURRENCES - 1 - order).where(says, -1)
        chosen = token.gather(1, votes.argmax(1, keepdim=True))
        goes_on = goes_on & says.any(1, keepdim=True)
        alive = (says & (token == chosen)).where(goes_on, alive)
        if step == 0:
            agree = alive.sum(1)
    first = order.where(alive, OCCURRENCES - 1).amin(1, keepdim=True)
    return places.gather(1, first)[:, 0].clamp(min=0), agree


def _alike(answers: Answers, places: Tensor, last: Tensor) -> Tensor:
    """(rows, levels) whether as many tokens as a level hashes are the same before these places."""
    sizes = SIZES[0] << torch.arange(_LEVELS, device=places.device)
    return _repeated(answers, places, last) >= sizes


def _repeated(answers: Answers, places: Tensor, last: Tensor) -> Tensor:
    """(rows, ..) how many tokens before these places are the text's `last`, the last one first."""
    back = torch.arange(1, last.shape[1] + 1, device=places.device)
    stored = _tokens(answers, places[:, :, None] - back)
    same = (stored == last[:, None, :]) & (stored >= 0)
    return same.long().cumprod(2).sum(2)


def _tokens(answers: Answers, places: Tensor) -> Tensor:
    """The stored tokens at these places; -1 outside and between answers."""
    capacity = answers.capacity
    inside = (places >= 0) & (places < capacity)
    tokens = answers.words[HEADER_WORDS + places.clamp(0, capacity - 1)]
    return tokens.long().where(inside, -1)


def _mixed(key: Tensor) -> Tensor:
    key = key * FACTORS[0]
    key = (key ^ _shifted(key, 32)) * FACTORS[1]
    return key ^ _shifted(key, 29)


def _shifted(key: Tensor, bits: int) -> Tensor:
    """A shift to the right that fills in zeros."""
    return (key >> bits) & ((1 << (64 - bits)) - 1)
