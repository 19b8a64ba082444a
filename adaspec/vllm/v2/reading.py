"""What a head drafts and how sure it is, read from its logits in every forward.

A head of one pass has the logits of all its tokens at once, or token after token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adaspec.trace.schema import CONFIDENCES
from adaspec.vllm.session.drafting import has_kernels
from adaspec.vllm.session.logits import read_logits


class Reading:
    """Reads the logits of a speculator's head, on an accelerator in one launch.

    The confidences are kept by the place of the token, as graphs of forwards fill them in too.
    """

    def __init__(self, speculator: Any, rows: int, device: torch.device) -> None:
        shape = (speculator.num_speculative_steps, rows, len(CONFIDENCES))
        self.confidences = torch.full(shape, torch.nan, device=device)
        """(tokens, rows, 3) in the order of `trace.schema.CONFIDENCES`."""
        self.offsets: Tensor | None = None
        """What is added to a token of the head's own vocabulary to make it the target's."""
        self._speculator = speculator
        self._reader: Any = None

    def load(self) -> None:
        """Look at the head that was loaded."""
        self.offsets = own_offsets(self._speculator)

    def read(self, hidden_states: Tensor, draft_step: Tensor, module: int) -> Tensor:
        """The likeliest tokens behind hidden states; their confidences are kept."""
        if self.offsets is None or not has_kernels(hidden_states.device):
            logits = self._speculator.compute_draft_logits(hidden_states, module)
            return self.keep(logits, draft_step)
        logits = _own_logits(self._speculator.model, hidden_states)
        return self.keep(logits, draft_step, self.offsets)

    def keep(self, logits: Tensor, draft_step: Tensor, offsets: Tensor | None = None) -> Tensor:
        """The likeliest tokens by these logits; their confidences are kept.

        `draft_step` is the place of the token in the draft: one for all, or one each where rows
        have all their tokens one behind another.
        """
        if has_kernels(logits.device):
            from adaspec.kernels.logits import LogitsReader

            if self._reader is None:
                self._reader = LogitsReader(self.confidences)
            return self._reader.read(logits, draft_step, offsets)
        tokens, evidence = read_logits(logits)
        each = len(self.confidences) if draft_step.ndim else 1
        rows = torch.arange(len(tokens)) // each
        self.confidences[draft_step.long(), rows] = evidence[:, 1:]
        return tokens


def own_offsets(speculator: Any) -> Tensor | None:
    """What makes a head's own tokens the target's, where its own logits say all there is; or None.

    Many heads know a part of the target's vocabulary. vLLM spreads their logits over all of it,
    with -inf between them, which is four times as much to write and to read.
    """
    model = speculator.model
    offsets = getattr(model, "draft_id_to_target_id", None)
    if offsets is None or not hasattr(model, "lm_head") or not hasattr(model, "logits_processor"):
        return None
    targets = torch.arange(len(offsets), device=offsets.device) + offsets
    # Of equal logits the first one counts, in either vocabulary.
    if len(targets) < 2 or not bool((targets.diff() > 0).all()):
        return None
    size, dtype = model.lm_head.embedding_dim, speculator.dtype
    probe = torch.linspace(-1.0, 1.0, size, dtype=dtype, device=offsets.device)[None]
    with torch.inference_mode():
        spread, own = speculator.compute_draft_logits(probe, 0), _own_logits(model, probe)
        if own.shape[1] != len(offsets) or int(targets[-1]) >= spread.shape[1]:
            return None
        expected = torch.full_like(spread, -torch.inf)
        expected[:, targets] = own
    return offsets.detach() if torch.equal(expected, spread) else None


def _own_logits(model: Any, hidden_states: Tensor) -> Tensor:
    logits: Tensor = model.logits_processor(model.lm_head, hidden_states)
    return logits
