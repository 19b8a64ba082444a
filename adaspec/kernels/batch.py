"""A step's rows as an engine hands them over, and what a predictor makes of them.

`predictor.FusedPredictor` computes it by kernels; on a CPU, `HostPredictor` of `vllm/session` by
the compiled functions that they are held to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from adaspec.draft.answers import HEADER_WORDS, AnswerIndex


class Batch(NamedTuple):
    """What an engine knows after a step; of slots, or of the batch's rows in their order."""

    slots: Tensor
    """(rows,) the slot of each row."""
    tokens: Tensor
    """(slots, longest context) int32 the known tokens, those of the step included."""
    context_tokens: Tensor
    """(slots,) how many there are."""
    prompt_tokens: Tensor
    """(slots,) how many of them are the prompt's."""
    holds_neural: Tensor
    """(slots,) whether the request holds the neural drafter."""
    sampled: Tensor
    """(rows,) the tokens that the step emitted, 0 while a request's prompt is read in pieces."""
    rejected: Tensor
    """(rows,) the verified tokens that it did not accept."""


class AnswersOnDevice(NamedTuple):
    """A `draft.answers.AnswerIndex` on a device, and who may look up whose answers.

    The host stores answers in its own index; the words that it changes follow to the device.
    """

    words: Tensor
    """(words,) int32 those of the index."""
    owners: Tensor
    """(slots,) int32 whose answers the request in each slot knows; 0: nobody's."""

    @classmethod
    def of(cls, index: AnswerIndex, slots: int, device: torch.device) -> AnswersOnDevice:
        """What an index holds now; it takes all of its memory at once."""
        words = torch.zeros(len(index.words), dtype=torch.int32, device=device)
        count = len(index.words) if index.tokens else HEADER_WORDS
        words[:count] = torch.from_numpy(index.words[:count]).to(device)
        return cls(words, torch.zeros(slots, dtype=torch.int32, device=device))

    def write(self, places: Tensor, words: Tensor) -> None:
        """Take in words that the host's index has at these places."""
        self.words.index_copy_(0, places, words)


@dataclass
class Step:
    """One step of a batch; what it holds may belong to the predictor, until the next one begins."""

    batch: Batch
    context_tokens: Tensor
    """(rows,) the known tokens."""
    decides: Tensor
    """(rows,) whether each has emitted a token, and so may be given a draft."""
    holds: Tensor
    """(rows,) whether each holds the neural drafter."""
    emitted: Tensor
    """(rows, cap + 1) the tokens that the last step emitted, -1 behind them."""
    price: Tensor
    """() float64 the worth of the time of verifying one token, in tokens."""
    factors: Tensor
    """(3,) float64 the recalibration factors of the sources."""
    forwards: int = 0
    """The forwards of the drafter that ran."""


class Expected(NamedTuple):
    """What a predictor knows and expects of a step's rows, as views: who writes there, decides."""

    match_length: Tensor
    """(rows,) how many tokens the row's text repeats."""
    candidate: Tensor
    """(rows, ..) the tokens that followed there."""
    splice_match_length: Tensor
    """(rows, depths) the same as `match_length` behind so many drafted tokens, from one on."""
    splice_match_available: Tensor
    """(rows, depths) how many tokens there are to copy there."""
    ngram: Tensor
    """(rows, ..) P(the first j copied tokens are accepted)."""
    neural: Tensor
    """(rows, depths + 1) the same of neural tokens."""
    splice: Tensor
    """(rows, depths + 1, ..) the same of tokens copied behind so many neural ones."""


class Lengths(NamedTuple):
    """Per row so many drafted tokens and what is spliced on, or copied ones, or nothing; int64."""

    neural: Tensor
    ngram: Tensor


class Proposal(NamedTuple):
    """What is to be verified."""

    wanted: Lengths
    """What is worth verifying at the step's price."""
    lengths: Lengths
    """The same sources, as long as they can draft; another one where nothing is worth it."""
    neural_gain: Tensor
    """(rows, GAINS) float64 what it is worth beyond the best that is only copied."""
    tokens: Tensor
    """(rows, cap) int64 the drafted and the copied tokens, -1 behind them."""
    survival: Tensor
    """(rows, cap) float64 P(each of them and all before it are accepted), 0 behind them."""
    from_answers: Tensor
    """(rows,) whether tokens are copied from earlier answers."""
