"""A drafter's logits, as the tokens that they mean and how sure it is of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adaspec.policy.protocol import Floats, Ints


def read_logits(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, evidence): the argmax, and per row that token and `trace.schema.CONFIDENCES`.

    logprob = log p1, margin = log p1 - log p2, entropy = -sum p log p. Evidence is one tensor so
    that one copy brings it to the host; a float32 holds any token id below 2**24.
    """
    tokens = logits.argmax(dim=-1)
    logp = torch.log_softmax(logits.float(), dim=-1)
    top = logp.topk(2, dim=-1).values
    # Entries of a reduced draft vocabulary's complement are -inf, for which p log p is 0.
    entropy = torch.special.entr(logp.exp()).sum(dim=-1)
    columns = [tokens.float(), top[:, 0], top[:, 0] - top[:, 1], entropy]
    return tokens, torch.stack(columns, dim=1)


def fetch(evidence: torch.Tensor) -> tuple[Ints, Floats]:
    """Evidence on the host: (rows,) tokens and (rows, 3) confidences. One copy."""
    host: Any = evidence.cpu().numpy()
    return host[:, 0].astype(np.int32), np.ascontiguousarray(host[:, 1:], np.float32)
