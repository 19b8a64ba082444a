"""A made-up engine's buffers, and what its steps do to them."""

import numpy as np
import torch

from adaspec.kernels.batch import Batch


class Engine:
    """Requests of random prompts in random slots; each step accepts some of what was proposed."""

    def __init__(self, rng, rows, longest, alphabet, device):
        self._rng, self._alphabet, self._device = rng, alphabet, device
        slots = rows + 2
        self.slots = rng.permutation(slots)[:rows]
        # What is left over from other requests must not be read.
        self.tokens = self._random((slots, longest + 400))
        # A span that comes again makes matches beyond the longest that count.
        half = longest // 2
        self.tokens[::2, half : 2 * half] = self.tokens[::2, :half]
        self.prompt_tokens = rng.integers(1, longest, slots, endpoint=True).astype(np.int32)
        self.context_tokens = self.prompt_tokens + 1
        self.holds_neural = rng.random(slots) < 0.8
        self.sampled, self.rejected = np.ones(rows, np.int32), np.zeros(rows, np.int32)

    @property
    def batch(self):
        arrays = (getattr(self, name) for name in Batch._fields)
        return Batch(*(torch.from_numpy(each.copy()).to(self._device) for each in arrays))

    def draft(self, forwards, lost=0.05):
        """(rows, forwards) tokens, some of them not given, and (forwards, rows, 3) confidences."""
        rows = len(self.slots)
        tokens = self._random((rows, forwards))
        # Behind one that the drafter did not give, it gives none.
        tokens[np.logical_or.accumulate(self._rng.random(tokens.shape) < lost, axis=1)] = -1
        tokens[~self.holds_neural[self.slots]] = -1
        confidences = -self._rng.exponential(1.0, (forwards, rows, 3)).astype(np.float32)
        for none in (np.nan, -np.inf):
            confidences[self._rng.random(confidences.shape) < 0.05] = none
        return torch.from_numpy(tokens), torch.from_numpy(confidences)

    def verify(self, proposal):
        """Accept some of each draft, and emit a token behind it; the rows change their order."""
        rng, rows = self._rng, len(self.slots)
        drafted = sum(proposal.lengths).cpu().numpy()
        accepted = np.where(rng.random(rows) < 0.4, drafted, rng.integers(0, drafted + 1))
        tokens = proposal.tokens.cpu().numpy()
        for row, slot in enumerate(self.slots):
            count, known = accepted[row], self.context_tokens[slot]
            self.tokens[slot, known : known + count] = tokens[row, :count].clip(0)
            self.tokens[slot, known + count] = rng.integers(self._alphabet)
            self.context_tokens[slot] += count + 1
        self.sampled = (accepted + 1).astype(np.int32)
        self.rejected = (drafted - accepted).astype(np.int32)
        order = rng.permutation(rows)
        self.slots, self.sampled = self.slots[order], self.sampled[order]
        self.rejected = self.rejected[order]

    def replace(self, row):
        slot = self.slots[row]
        self.prompt_tokens[slot] = self._rng.integers(1, self.context_tokens[slot], endpoint=True)
        self.context_tokens[slot] = self.prompt_tokens[slot] + 1
        self.tokens[slot] = self._random(self.tokens[slot].shape)
        self.sampled[row], self.rejected[row] = 1, 0

    def _random(self, shape):
        return self._rng.integers(0, self._alphabet, shape).astype(np.int32)
