"""What is drafted, as `policy.planner.choose` has it: per row a source and a length at a price."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adaspec.device.curves import Expectations, weigh_splices
from adaspec.policy.planner.memory import LONGEST_NGRAM, LONGEST_SPLICE


class Lengths(NamedTuple):
    """Per row so many drafted tokens and what is spliced on, or copied ones, or nothing; int64."""

    neural: Tensor
    ngram: Tensor
    expected: Expectations
    """With the splices as they were weighed at the price."""

    @property
    def tokens(self) -> Tensor:
        """The number of tokens of the whole batch."""
        return self.neural.sum() + self.ngram.sum()


def choose_at(
    expected: Expectations,
    available: Tensor,
    price: Tensor,
    count: int,
    cap: int,
    reads_drafts: bool,
) -> Lengths:
    """Every row's best draft at a price per token, after `count` forwards of the drafter."""
    if reads_drafts and count:
        expected = weigh_splices(expected, count, price)
    copied_len, copied_value = _best_ngram(expected.ngram, available, price, cap)
    if not count:
        return Lengths(torch.zeros_like(copied_len), copied_len, expected)
    value = (expected.neural[:, 1 : count + 1] - price).cumsum(1)
    depths = torch.arange(1, count + 1, device=value.device)
    value = value + expected.splice_value[:, 1 : count + 1].where(depths < cap, 0.0)
    best, place = value.max(1)
    takes_neural = (best > 0) & (best > copied_value)
    neural_len = (place + 1).where(takes_neural, 0)
    spliced_len = expected.splice_len.gather(1, neural_len[:, None])[:, 0]
    return Lengths(neural_len, spliced_len.where(takes_neural, copied_len), expected)


def extended(
    chosen: Lengths, available: Tensor, count: int, cap: int, reads_drafts: bool
) -> Lengths:
    """The chosen sources, as long as they can draft; another one where nothing was chosen."""
    expected = chosen.expected
    free = choose_at(expected, available, expected.neural.new_zeros(()), count, cap, reads_drafts)
    at_depth = chosen.neural[:, None, None].expand(-1, -1, LONGEST_SPLICE + 1)
    spliced = (expected.splice.gather(1, at_depth)[:, 0, 1:] > 0).sum(1)
    spliced = spliced.minimum(cap - chosen.neural)
    copied = (expected.ngram[:, 1:] > 0).sum(1).minimum(available)
    copied = copied.clamp(max=min(cap, LONGEST_NGRAM))
    drafts, copies = chosen.neural > 0, chosen.ngram > 0
    return Lengths(
        neural=chosen.neural.where(drafts | copies, free.neural),
        ngram=spliced.where(drafts, copied.where(copies, free.ngram)),
        expected=expected,
    )


def expected_tokens(lengths: Lengths) -> Tensor:
    """(rows, 3) the tokens expected to be accepted of what is proposed: n-gram, neural, splice."""
    expected, drafts = lengths.expected, lengths.neural > 0
    copied = _sum_to(expected.ngram, lengths.ngram).where(~drafts, 0.0)
    spliced = expected.splice_tokens.gather(1, lengths.neural[:, None])[:, 0]
    return torch.stack(
        (copied, _sum_to(expected.neural, lengths.neural), spliced.where(drafts, 0.0)), 1
    )


def survival_of(lengths: Lengths, cap: int) -> Tensor:
    """(rows, cap) P(each proposed token and all before it are accepted), 0 behind the last."""
    expected, most = lengths.expected, lengths.neural[:, None]
    count = torch.arange(1, cap + 1, device=most.device).expand(len(most), -1)
    spliced = expected.splice.gather(1, most[:, :, None].expand(-1, -1, LONGEST_SPLICE + 1))[:, 0]
    spliced = spliced.gather(1, (count - most).clamp(0, LONGEST_SPLICE))
    neural = expected.neural.gather(1, count.minimum(most)) * spliced.where(count > most, 1.0)
    copied = expected.ngram.gather(1, count.clamp(max=LONGEST_NGRAM))
    survival = torch.where(most > 0, neural, copied)
    return survival.where(count <= most + lengths.ngram[:, None], 0.0)


def _best_ngram(
    survival: Tensor, available: Tensor, price: Tensor, cap: int
) -> tuple[Tensor, Tensor]:
    """Each row's best n-gram length, and what it is worth."""
    lengths = torch.arange(1, LONGEST_NGRAM + 1, device=survival.device)
    fits = (lengths <= available[:, None]) & (lengths <= cap)
    worth = (survival[:, 1:] > 0) & (survival[:, 1:] >= price)
    taken = (fits & worth).long().cumprod(1)
    return taken.sum(1), ((survival[:, 1:] - price) * taken).sum(1)


def _sum_to(survival: Tensor, length: Tensor) -> Tensor:
    """The sum of each curve from 1 up to a length."""
    lengths = torch.arange(survival.shape[1], device=survival.device)
    return (survival * ((lengths > 0) & (lengths <= length[:, None]))).sum(1)
