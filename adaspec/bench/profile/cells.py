"""Which steps are measured: batches, contexts, and plans that tell their prices apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adaspec.vllm.forced import Plan

ON_CPU = (1, 2, 4, 8, 16)
ON_GPU = (1, 4, 16, 64, 128)
"""Batches where none are named."""
CONTEXTS = (128, 512, 1024)
NEURAL_LENS = (1, 2, 4, 8)
NGRAM_LENS = (3, 8, 16)
TOKENS_PER_STEP_ROOM = 4
"""Tokens that a request may come to per step, on average, before its text reaches the end."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """Requests that decode together from a context of so many tokens."""

    requests: int
    context_tokens: int
    holds: bool
    """Whether they hold the neural drafter, and with it pay its keep-alive."""


def cells_of(batches: Sequence[int], contexts: Sequence[int], drafter: bool) -> list[Cell]:
    """Every batch at every context, without and (where there is one) with the drafter held."""
    held = (False, True) if drafter else (False,)
    return [
        Cell(requests, context, holds)
        for context in sorted(contexts)
        for requests in sorted(batches)
        for holds in held
    ]


def plans_of(cell: Cell, neural_lens: Sequence[int], ngram_lens: Sequence[int]) -> list[Plan]:
    """The plans of a cell.

    A draft that is taken whole makes forwards and verified tokens grow together, and no fit could
    tell their prices apart: so drafts are also trimmed, and dropped for copied tokens.
    """
    copies = [Plan(ngram_len=length) for length in ngram_lens]
    if not cell.holds:
        return [Plan(), *copies]
    longest = max(neural_lens)
    return [
        Plan(),
        *copies[-1:],
        *(Plan(forwards=k, neural_len=k) for k in neural_lens),
        Plan(forwards=longest, neural_len=1),
        Plan(forwards=min(neural_lens), ngram_len=max(ngram_lens)),
        Plan(forwards=longest, ngram_len=min(ngram_lens)),
        Plan(forwards=neural_lens[0], neural_len=neural_lens[0], ngram_len=min(ngram_lens)),
    ]
