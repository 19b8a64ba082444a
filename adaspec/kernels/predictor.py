"""The learned policy's choice per row, step after step, in a few kernels.

    begin            scan, observe
    expect           expect
    revise           scan, revise
    choose           choose
    extended         extend
    propose          propose

Where the model reads no drafted tokens, a choice takes one kernel more (`splice`). Everything that
is written was allocated before, and belongs to the step until the next one begins; `Step` and
`Proposal` are views of it. All tensors lie on one device, nothing waits for it, and no shape
depends on what they hold. What is decided for the whole batch (its forwards, the price,
recalibration) is decided elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from adaspec.kernels import choose, observe, propose, revise, scan
from adaspec.kernels.batch import Answers, Batch, Lengths, Proposal, Step
from adaspec.kernels.buffers import Rows
from adaspec.kernels.layout import AVAILABLE, CONTEXT, MATCH
from adaspec.kernels.model import ModelBuffers
from adaspec.predict.model import Model

SPLITS = 16
"""The programs among which the scan of a text is divided, a power of two."""
SCAN_BLOCK = 512
"""The places that a program of the scan looks at side by side."""
_EXACT: dict[str, Any] = {"enable_fp_fusion": False, "num_warps": 4}
"""Products are rounded before they are added, as on the host."""


class FusedPredictor:
    """A model, for the rows of each step."""

    def __init__(
        self,
        model: Model,
        knobs: NDArray[np.float64],
        slots: int,
        cap: int,
        device: torch.device,
        splits: int = SPLITS,
        answers: Answers | None = None,
    ) -> None:
        """`knobs` as `planner.memory.knob_row` has them; no draft is longer than `cap`.

        Where there are `answers` of earlier requests, they are looked up, too.
        """
        self.model, self.cap = ModelBuffers.of(model, device), cap
        self.reads_drafts = model.reads_evidence
        """Whether drafted tokens change what is expected."""
        self._knobs = torch.from_numpy(np.asarray(knobs, np.float64)).to(device)
        self._splits = splits
        self.rows = Rows.allocate(slots, splits, device)
        """What is known of the rows, and expected of their drafts."""
        self._views: dict[int, tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = {}
        """By number of rows: making them takes longer than a launch."""
        self._chosen, self._extended = torch.zeros((2, 2, slots), dtype=torch.int64, device=device)
        """The neural and the n-gram lengths."""
        self._spliced_len = torch.zeros(slots, dtype=torch.int64, device=device)
        self._emitted = torch.zeros((slots, cap + 1), dtype=torch.int64, device=device)
        self._tokens = torch.zeros((slots, cap), dtype=torch.int64, device=device)
        self._survival = torch.zeros((slots, cap), dtype=torch.float64, device=device)
        self._from_answers = torch.zeros(slots, dtype=torch.bool, device=device)
        self.answers = answers
        self._memory = answers or Answers(self.rows.keys, self.rows.keys)

    def begin(self, batch: Batch) -> Step:
        """Look at the text as it is now."""
        count, buffers = len(batch.slots), self.rows
        self._scan(batch, batch.slots, 0)
        observe.observe[(count,)](
            batch,
            batch.tokens.stride(0),
            self.model.behind.tables,
            buffers,
            self._memory,
            self._emitted,
            self.cap,
            splits=self._splits,
            emitted_lanes=triton.next_power_of_2(self.cap + 1),
            remembers=self.answers is not None,
            **_EXACT,
        )
        if count not in self._views:
            facts = buffers.facts[:count]
            self._views[count] = (
                facts[:, CONTEXT.value],
                buffers.decides[:count],
                buffers.holds[:count],
                facts[:, MATCH.value + AVAILABLE.value],
                self._emitted[:count],
            )
        return Step(batch, *self._views[count])

    def _scan(self, batch: Batch, newest: Tensor, depth: int) -> None:
        """Scan the texts behind so many drafted tokens, of which `newest` are the last."""
        drafts = self.rows.drafts
        scan.scan[(len(batch.slots), self._splits)](
            batch.tokens,
            batch.tokens.stride(0),
            batch.slots,
            batch.context_tokens,
            drafts,
            drafts.stride(0),
            newest,
            newest.stride(0),
            depth,
            self.rows.keys,
            behind_drafts=depth > 0,
            block_places=SCAN_BLOCK,
            num_warps=4,
        )

    def expect(self, step: Step, price: Tensor, factors: Tensor) -> None:
        """Fill in what is expected before drafting.

        `price` is the worth of the time of verifying one token, in tokens; `factors` are the (3,)
        recalibration factors of the sources. Both are float64.
        """
        step.price, step.factors = price, factors
        observe.expect[(len(step.holds),)](
            self.rows, self.model.before, self._knobs, factors, price, **_EXACT
        )

    def revise(self, step: Step, token: Tensor, confidence: Tensor) -> None:
        """Take in the tokens of a forward, -1 where there is none, and their confidences.

        `confidence` is (rows, 3) float32 in the order of `trace.schema.CONFIDENCES`.
        """
        step.forwards += 1
        batch = step.batch
        self._scan(batch, token, step.forwards)
        revise.revise[(len(step.holds),)](
            batch.slots,
            batch.tokens,
            batch.tokens.stride(0),
            token,
            token.stride(0),
            confidence,
            confidence.stride(0),
            confidence.stride(1),
            step.forwards,
            self.rows,
            self._memory,
            self.model.behind,
            self._knobs,
            step.factors,
            step.price,
            self.cap,
            reads_drafts=self.reads_drafts,
            splits=self._splits,
            remembers=self.answers is not None,
            **_EXACT,
        )

    def choose(self, step: Step) -> Lengths:
        """Every row's best draft at the step's price, after the forwards that ran."""
        count = len(step.holds)
        choose.choose[(count,)](
            self.rows,
            step.price,
            step.forwards,
            self.cap,
            *self._chosen,
            reads_drafts=self.reads_drafts and step.forwards > 0,
            **_EXACT,
        )
        neural, ngram = self._chosen[:, :count]
        chosen = Lengths(neural, ngram)
        return chosen if self.reads_drafts else self._with_splices(step, chosen)

    def _with_splices(self, step: Step, chosen: Lengths) -> Lengths:
        """With what is worth copying behind the chosen neural tokens, where drafts are not read."""
        if not step.forwards:
            return chosen
        count = len(step.holds)
        choose.splice[(count,)](
            self.rows,
            self.model.behind,
            step.factors,
            step.price,
            step.forwards,
            self.cap,
            chosen.neural,
            chosen.ngram,
            self._spliced_len,
            **_EXACT,
        )
        return chosen._replace(ngram=self._spliced_len[:count])

    def extended(self, step: Step, chosen: Lengths) -> Lengths:
        """The chosen sources, as long as they can draft; another one where nothing was chosen."""
        count = len(step.holds)
        choose.extend[(count,)](
            self.rows,
            step.forwards,
            self.cap,
            chosen.neural,
            chosen.ngram,
            *self._extended,
            reads_drafts=self.reads_drafts and step.forwards > 0,
            **_EXACT,
        )
        neural, ngram = self._extended[:, :count]
        return Lengths(neural, ngram)

    def propose(self, step: Step, lengths: Lengths) -> Proposal:
        """The chosen tokens."""
        count = len(step.holds)
        propose.propose[(count,)](
            step.batch.slots,
            step.batch.tokens,
            step.batch.tokens.stride(0),
            self.rows,
            step.forwards,
            self.cap,
            lengths.neural,
            lengths.ngram,
            self._tokens,
            self._survival,
            self._from_answers,
            self._memory,
            cap_lanes=triton.next_power_of_2(self.cap),
            remembers=self.answers is not None,
            **_EXACT,
        )
        return Proposal(
            tokens=self._tokens[:count],
            survival=self._survival[:count],
            from_answers=self._from_answers[:count],
        )
