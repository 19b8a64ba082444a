"""The learned policy's choice per row as `device.predictor.Predictor` makes it, in a few kernels.

    begin            scan, observe
    expect           expect
    revise           scan, revise
    choose           choose
    extended         extend
    propose          propose

Where the model reads no drafted tokens, a choice takes one kernel more (`splice`). Everything that
is written was allocated before, and belongs to the step until the next one begins; `Step` and
`Proposal` are views of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from adaspec.device.answers import Answers
from adaspec.device.curves import Expectations
from adaspec.device.features import Rows as RowFacts
from adaspec.device.kernels import choose, observe, propose, revise, scan
from adaspec.device.kernels.answers import AnswerBuffers
from adaspec.device.kernels.buffers import Rows
from adaspec.device.kernels.layout import (
    CONTEXT,
    FIRST,
    MATCH,
    MATCH_FACTS,
    POSITION,
    PROMPT,
    TAIL,
)
from adaspec.device.kernels.model import ModelBuffers
from adaspec.device.lengths import Lengths
from adaspec.device.lookup import Match
from adaspec.device.predictor import Batch, Proposal
from adaspec.policy.planner.memory import LONGEST_NEURAL, LONGEST_NGRAM, LONGEST_SPLICE
from adaspec.predict.features import CANDIDATE
from adaspec.predict.features import TAIL as TAIL_TOKENS
from adaspec.predict.model import Model

SPLITS = 16
"""The programs among which the scan of a text is divided, a power of two."""
SCAN_BLOCK = 512
"""The places that a program of the scan looks at side by side."""
_EXACT: dict[str, Any] = {"enable_fp_fusion": False, "num_warps": 4}
"""Products are rounded before they are added, as on the host."""


class _Views(NamedTuple):
    """The views of a step of so many rows, in the order of `Step`."""

    context_tokens: Tensor
    decides: Tensor
    rows: RowFacts
    features: Tensor
    expected: Expectations


@dataclass
class Step:
    """One step of a batch; what it holds are views of the predictor's buffers."""

    batch: Batch
    context_tokens: Tensor
    decides: Tensor
    """Whether each row has emitted a token, and so may be given a draft."""
    rows: RowFacts
    features: Tensor
    expected: Expectations
    price: Tensor = field(init=False)
    factors: Tensor = field(init=False)
    forwards: int = 0
    """The forwards that ran."""

    @property
    def slots(self) -> Tensor:
        """The slot of each row."""
        return self.batch.slots


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
        self._rows = Rows.allocate(slots, splits, device)
        self._views: dict[int, _Views] = {}
        """By number of rows: making them takes longer than a launch."""
        self._chosen, self._extended = torch.zeros((2, 2, slots), dtype=torch.int64, device=device)
        """The neural and the n-gram lengths."""
        self._spliced_len = torch.zeros(slots, dtype=torch.int64, device=device)
        self._emitted = torch.zeros((slots, cap + 1), dtype=torch.int64, device=device)
        self._tokens = torch.zeros((slots, cap), dtype=torch.int64, device=device)
        self._survival = torch.zeros((slots, cap), dtype=torch.float64, device=device)
        self._expected = torch.zeros((slots, 3), dtype=torch.float64, device=device)
        self._from_answers = torch.zeros(slots, dtype=torch.bool, device=device)
        self.answers = answers
        self._memory = AnswerBuffers.of(answers, self._rows.keys)

    def warm_up(self, batch: Batch) -> None:
        """Compile what steps of such batches will launch, in steps that have none of its rows.

        They must come with tensors of the same types, and with int64 tokens of the drafter.
        """
        none = batch.slots.new_zeros(0, dtype=torch.int64)
        empty = batch._replace(
            slots=batch.slots[:0], sampled=batch.sampled[:0], rejected=batch.rejected[:0]
        )
        price, factors = self._knobs.new_zeros(()), self._knobs.new_zeros(3)
        for forwards in (0, 1):
            step = self.begin(empty)
            self.expect(step, price, factors)
            for _ in range(forwards):
                self.revise(step, none, factors.new_zeros((0, 3), dtype=torch.float32))
            self.propose(step, self.extended(step, self.choose(step)))

    def begin(self, batch: Batch) -> Step:
        """Look at the text as it is now."""
        count, buffers = len(batch.slots), self._rows
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
        views = self._views.get(count)
        if views is None:
            views = self._views[count] = self._views_of(count)
        return Step(batch, *views)

    def _views_of(self, count: int) -> _Views:
        """What a step of so many rows holds, from its context's length to what is expected."""
        rows = Rows(*(buffer[:count] for buffer in self._rows))
        facts, depths = rows.facts, LONGEST_NEURAL + 1
        match = facts[:, MATCH.value : MATCH.value + MATCH_FACTS.value]
        return _Views(
            context_tokens=facts[:, CONTEXT.value],
            decides=rows.decides,
            rows=RowFacts(
                prompt_tokens=facts[:, PROMPT.value],
                position=facts[:, POSITION.value],
                holds=rows.holds,
                match=Match(*match.unbind(1)),
                tail=facts[:, TAIL.value : TAIL.value + TAIL_TOKENS],
                candidate=facts[:, FIRST.value : FIRST.value + CANDIDATE],
            ),
            features=rows.features,
            expected=Expectations(
                neural=rows.neural[:, :depths],
                ngram=rows.ngram[:, : LONGEST_NGRAM + 1],
                splice=rows.splice[:, :depths, : LONGEST_SPLICE + 1],
                splice_expected=rows.splice_expected,
                splice_value=rows.splice_value[:, :depths],
                splice_len=rows.splice_len[:, :depths],
                splice_tokens=rows.splice_tokens[:, :depths],
                agreed=rows.agreed,
                least=rows.least,
            ),
        )

    def _scan(self, batch: Batch, newest: Tensor, depth: int) -> None:
        """Scan the texts behind so many drafted tokens, of which `newest` are the last."""
        drafts = self._rows.drafts
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
            self._rows.keys,
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
        observe.expect[(len(step.slots),)](
            self._rows, self.model.before, self._knobs, factors, price, **_EXACT
        )

    def revise(self, step: Step, token: Tensor, confidence: Tensor) -> None:
        """Take in the tokens of a forward, -1 where there is none, and their confidences.

        `confidence` is (rows, 3) float32 in the order of `trace.schema.CONFIDENCES`.
        """
        step.forwards += 1
        batch = step.batch
        self._scan(batch, token, step.forwards)
        revise.revise[(len(step.slots),)](
            batch.slots,
            batch.tokens,
            batch.tokens.stride(0),
            token,
            token.stride(0),
            confidence,
            confidence.stride(0),
            confidence.stride(1),
            step.forwards,
            self._rows,
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
        count = len(step.slots)
        choose.choose[(count,)](
            self._rows,
            step.price,
            step.forwards,
            self.cap,
            *self._chosen,
            reads_drafts=self.reads_drafts and step.forwards > 0,
            **_EXACT,
        )
        neural, ngram = self._chosen[:, :count]
        chosen = Lengths(neural, ngram, step.expected)
        return chosen if self.reads_drafts else self._with_splices(step, chosen)

    def _with_splices(self, step: Step, chosen: Lengths) -> Lengths:
        """With what is worth copying behind the chosen neural tokens, where drafts are not read."""
        if not step.forwards:
            return chosen
        count = len(step.slots)
        choose.splice[(count,)](
            self._rows,
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
        count = len(step.slots)
        choose.extend[(count,)](
            self._rows,
            step.forwards,
            self.cap,
            chosen.neural,
            chosen.ngram,
            *self._extended,
            reads_drafts=self.reads_drafts and step.forwards > 0,
            **_EXACT,
        )
        neural, ngram = self._extended[:, :count]
        return Lengths(neural, ngram, step.expected)

    def emitted(self, step: Step) -> Tensor:
        """(rows, cap + 1) the tokens that the last step emitted, -1 behind them."""
        return self._emitted[: len(step.slots)]

    def propose(self, step: Step, lengths: Lengths) -> Proposal:
        """The chosen tokens."""
        count = len(step.slots)
        propose.propose[(count,)](
            step.slots,
            step.batch.tokens,
            step.batch.tokens.stride(0),
            self._rows,
            step.forwards,
            self.cap,
            lengths.neural,
            lengths.ngram,
            self._tokens,
            self._survival,
            self._expected,
            self._from_answers,
            self._memory,
            cap_lanes=triton.next_power_of_2(self.cap),
            remembers=self.answers is not None,
            **_EXACT,
        )
        return Proposal(
            tokens=self._tokens[:count],
            survival=self._survival[:count],
            neural_len=lengths.neural,
            ngram_len=lengths.ngram,
            expected=self._expected[:count],
            from_answers=self._from_answers[:count],
        )
