"""What a drafter's logits say of its next token."""

from __future__ import annotations

import torch
from torch import Tensor


def read_logits(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Read (tokens, evidence) from logits.

    Tokens are the argmax of each row. The evidence of a row is its token and
    `trace.schema.CONFIDENCES`: logprob = log p1, margin = log p1 - log p2, entropy = -sum p log p.
    It is one tensor so that one copy brings it to the host, and a float32 holds any token id below
    2**24.
    """
    tokens = logits.argmax(dim=-1)
    logp = torch.log_softmax(logits.float(), dim=-1)
    top = logp.topk(2, dim=-1).values
    # Tokens that a reduced draft vocabulary lacks have logits of -inf; for them, p log p is 0.
    entropy = torch.special.entr(logp.exp()).sum(dim=-1)
    columns = [tokens.float(), top[:, 0], top[:, 0] - top[:, 1], entropy]
    return tokens, torch.stack(columns, dim=1)
