"""A step's rows as an engine hands them over, and what a predictor makes of them.

`predictor.FusedPredictor` computes it by kernels; on a CPU, `HostPredictor` of `vllm/session` by
the compiled functions that they are held to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor


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


class RingOnDevice(NamedTuple):
    """A `draft.matches.Ring` on a device, and who reads it."""

    tokens: Tensor
    """(twice the capacity,) int32 those of the ring by place."""
    known: Tensor
    """(1,) int32 how many there are."""
    readers: Tensor
    """(slots,) bool whether the request in each slot searches the ring."""

    @classmethod
    def empty(cls, capacity: int, slots: int, device: torch.device) -> RingOnDevice:
        """Room for a ring of that capacity."""
        return cls(
            torch.zeros(2 * capacity, dtype=torch.int32, device=device),
            torch.zeros(1, dtype=torch.int32, device=device),
            torch.zeros(slots, dtype=torch.bool, device=device),
        )


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """The values on the device, without waiting for it."""
    host = torch.from_numpy(values)
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)


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
    settings: Tensor
    """(SETTINGS,) float64 by what rows choose: see `policy.choice`."""
    forwards: int = 0
    """The forwards of the drafter that ran."""


class Matched(NamedTuple):
    """How far rows' texts repeat themselves: what a static rule looks at."""

    length: Tensor
    """(rows,) how many tokens were there before."""
    available: Tensor
    """(rows,) how many tokens that followed there could be copied."""
    splice_length: Tensor
    """The same behind the drafted tokens."""
    splice_available: Tensor


class Lengths(NamedTuple):
    """Per row so many drafted tokens and what is spliced on, or copied ones, or nothing; int64."""

    neural: Tensor
    ngram: Tensor


class Choice(NamedTuple):
    """What is to be verified."""

    lengths: Lengths
    """Of the source that is worth most at the step's price, as far as it goes."""
    gain: Tensor
    """(rows, GAINS) float64 what forwards bring (see `policy.budget`)."""
    tokens: Tensor
    """(rows, cap) int64 the drafted and the copied tokens, -1 behind them."""
    survival: Tensor
    """(rows, cap) float64 P(each of them and all before it are accepted), 0 behind them."""
