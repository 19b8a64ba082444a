"""The learned policy's choice per row, step after step, in a few kernels.

Everything that is written was allocated before, and belongs to the step until the next one begins;
`Step` and `Choice` are views of it. All tensors lie on one device, nothing waits for it, and no
shape depends on what they hold.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from adaspec.kernels import prediction, propose, scan
from adaspec.kernels.batch import Batch, Choice, Lengths, Matched, RingOnDevice, Step, to_device
from adaspec.kernels.layout import (
    AVAILABLE,
    CONTEXT,
    LENGTH,
    MATCH,
    MATCH_FACTS,
    NEURAL_LANES,
    NGRAM_LANES,
    SPLICE_LANES,
    SPLICE_MATCHES,
    RowBuffers,
)
from adaspec.kernels.model import CurveBuffers, NetworkBuffers, TableBuffers
from adaspec.policy.budget import GAINS
from adaspec.predict.model import LONGEST_NEURAL, LONGEST_NGRAM, LONGEST_SPLICE, Model

SPLITS = 16
"""The programs among which the scan of a text is divided, a power of two."""
SCAN_BLOCK = 512
"""The places that a program of the scan looks at side by side."""
_EXACT: dict[str, Any] = {"enable_fp_fusion": False, "num_warps": 4}
"""Products are rounded before they are added, as on the host."""
_OfStep: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


class Before(NamedTuple):
    """What predicts before drafting."""

    network: NetworkBuffers
    ngram: CurveBuffers
    neural: CurveBuffers


class BehindDrafts(NamedTuple):
    """What predicts behind drafted tokens."""

    evidence: NetworkBuffers
    splice: NetworkBuffers
    spliced: CurveBuffers
    tables: TableBuffers


class FusedPredictor:
    """A model, for the rows of each step."""

    def __init__(
        self,
        model: Model,
        slots: int,
        cap: int,
        device: torch.device,
        splits: int = SPLITS,
        ring: RingOnDevice | None = None,
    ) -> None:
        """No draft is longer than `cap`; the `ring` is searched, too, if there is one."""
        networks = {name: NetworkBuffers.of(each, device) for name, each in model.networks.items()}
        curves, self._tables = model.curves, TableBuffers.of(model.tables, device)
        self._before = Before(
            network=networks["before"],
            ngram=CurveBuffers.of(curves["ngram"], LONGEST_NGRAM, NGRAM_LANES.value, device),
            neural=CurveBuffers.of(curves["neural"], LONGEST_NEURAL, NEURAL_LANES.value, device),
        )
        self._behind = BehindDrafts(
            evidence=networks.get("evidence", networks["splice"]),  # one that is never run
            splice=networks["splice"],
            spliced=CurveBuffers.of(curves["splice"], LONGEST_SPLICE, SPLICE_LANES.value, device),
            tables=self._tables,
        )
        self.cap = cap
        self.reads_drafts = model.reads_evidence
        """Whether drafted tokens change what is expected."""
        self._splits = splits
        self.rows = RowBuffers.allocate(slots, splits, device)
        """What is known of the rows, and expected of their drafts."""
        self._views: dict[int, tuple[_OfStep, Choice]] = {}
        """By number of rows: making them takes longer than a launch."""
        self._lengths = torch.zeros((2, slots), dtype=torch.int64, device=device)
        """The neural and the n-gram lengths."""
        self._gain = torch.zeros((slots, GAINS), dtype=torch.float64, device=device)
        self._emitted = torch.zeros((slots, cap + 1), dtype=torch.int64, device=device)
        self._tokens = torch.zeros((slots, cap), dtype=torch.int64, device=device)
        self._survival = torch.zeros((slots, cap), dtype=torch.float64, device=device)
        self._has_ring = ring is not None
        self._ring = ring or RingOnDevice(self.rows.keys, self.rows.keys, self.rows.holds)

    def enter(self, slots: NDArray[Any], in_ring: NDArray[np.bool_]) -> None:
        """Requests take these slots; `in_ring`: whether the ring is searched for each."""
        if self._has_ring:
            device = self._ring.readers.device
            places, values = (to_device(each, device) for each in (slots, in_ring))
            self._ring.readers.index_copy_(0, places.long(), values)

    def begin(self, batch: Batch, settings: Tensor) -> Step:
        """Look at the text as it is now, and fill in what is expected before drafting."""
        count, rows = len(batch.slots), self.rows
        self._scan(batch, batch.slots, 0)
        prediction.begin[(count,)](
            batch,
            batch.tokens.stride(0),
            self._before,
            self._tables,
            rows,
            self._ring,
            self._emitted,
            self.cap,
            splits=self._splits,
            emitted_lanes=triton.next_power_of_2(self.cap + 1),
            has_ring=self._has_ring,
            **_EXACT,
        )
        if count not in self._views:
            self._views[count] = self._views_of(count)
        return Step(batch, *self._views[count][0], settings)

    def matches(self, step: Step, neural_len: int) -> Matched:
        """How long the matches of rows are and how much could be copied; and behind drafts."""
        facts, last = self.rows.facts[: len(step.holds)], max(neural_len - 1, 0)
        behind = SPLICE_MATCHES.value + last * MATCH_FACTS.value
        places = [at + fact.value for at in (MATCH.value, behind) for fact in (LENGTH, AVAILABLE)]
        length, available, *spliced = (facts[:, place] for place in places)
        if not 0 < neural_len <= step.forwards:
            spliced = [torch.zeros_like(length)] * 2
        return Matched(length, available, *spliced)

    def _views_of(self, count: int) -> tuple[_OfStep, Choice]:
        """The views of a step of so many rows, in the order of `Step`, and its proposal's."""
        context, decides, holds = (
            self.rows.facts[:, CONTEXT.value],
            self.rows.decides,
            self.rows.holds,
        )
        of_step = context[:count], decides[:count], holds[:count], self._emitted[:count]
        return of_step, Choice(
            lengths=Lengths(*self._lengths[:, :count]),
            gain=self._gain[:count],
            tokens=self._tokens[:count],
            survival=self._survival[:count],
        )

    def _scan(self, batch: Batch, newest: Tensor, depth: int) -> None:
        """Scan the texts behind so many drafted tokens, of which `newest` are the last.

        The ring is scanned as well, where there is one.
        """
        searched = (False, True) if self._has_ring else (False,)
        for in_ring in searched:
            scan.scan[(len(batch.slots), self._splits)](
                batch.tokens,
                batch.tokens.stride(0),
                batch.slots,
                batch.context_tokens,
                self.rows.drafts,
                newest,
                newest.stride(0),
                depth,
                self._ring,
                len(self._ring.tokens) // 2,
                self.rows.ring_keys if in_ring else self.rows.keys,
                behind_drafts=depth > 0,
                in_ring=in_ring,
                block_places=SCAN_BLOCK,
                num_warps=4,
            )

    def revise(self, step: Step, tokens: Tensor, confidences: Tensor) -> None:
        """Take in the (rows, forwards) tokens of the drafter and their confidences.

        A row that does not hold it has none. `confidences` are (forwards, rows, 3) float32 in the
        order of `trace.schema.CONFIDENCES`.
        """
        batch = step.batch
        for depth in range(tokens.shape[1]):
            step.forwards += 1
            token, confidence = tokens[:, depth].where(step.holds, -1), confidences[depth]
            self._scan(batch, token, step.forwards)
            prediction.revise[(len(step.holds),)](
                batch.slots,
                batch.tokens,
                batch.tokens.stride(0),
                token,
                token.stride(0),
                confidence,
                confidence.stride(0),
                confidence.stride(1),
                step.forwards,
                self._behind,
                self.rows,
                self._ring,
                self.cap,
                reads_drafts=self.reads_drafts,
                splits=self._splits,
                has_ring=self._has_ring,
                **_EXACT,
            )

    def propose(self, step: Step, lengths: Lengths | None = None) -> Choice:
        """Every row's best draft after the forwards that ran, as far as its source goes.

        Where `lengths` are given, they are drafted, and certain.
        """
        batch, rows, count = step.batch, self.rows, len(step.holds)
        if lengths is not None:
            for ours, given in zip(self._lengths, lengths, strict=True):
                ours[:count].copy_(given)
        propose.propose[(count,)](
            batch.slots,
            batch.tokens,
            batch.tokens.stride(0),
            rows,
            self._ring,
            None if self.reads_drafts else self._behind,
            step.settings,
            step.forwards,
            self.cap,
            self._lengths.stride(0),
            self._lengths,
            self._gain,
            self._tokens,
            self._survival,
            cap_lanes=triton.next_power_of_2(self.cap),
            lengths_given=lengths is not None,
            reads_drafts=self.reads_drafts,
            has_ring=self._has_ring,
            **_EXACT,
        )
        return self._views[count][1]
