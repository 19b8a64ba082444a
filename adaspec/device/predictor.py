"""The learned policy's choice per row, step after step, without a look back at the host.

    begin(batch) -> Step        the look-up and the features
    expect(step, ..)            what is expected before drafting
    revise(step, ..)            after each forward: its tokens, and what is expected by them
    choose(step)                what is worth drafting at the price
    extended(step, lengths)     the same sources, as long as they can draft
    propose(step, lengths)      its tokens

All tensors handed in and out lie on one device, and no shape depends on what they hold. What is
decided for the whole batch (its forwards, the price, recalibration) is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaspec.device.answers import Answers, best_match, copied, token_in_either
from adaspec.device.curves import (
    Expectations,
    predict_before_drafting,
    predict_splices,
    revise_by_draft,
    weigh_splices,
)
from adaspec.device.features import Rows, observe
from adaspec.device.lengths import (
    Lengths,
    choose_at,
    expected_tokens,
    extended,
    survival_of,
)
from adaspec.device.lookup import (
    Match,
    Text,
    append,
    look_up,
    read_text,
    tail,
    tokens_at,
)
from adaspec.device.model import DeviceModel
from adaspec.draft.answers import IN_ANSWERS
from adaspec.policy.planner.memory import LONGEST_NEURAL
from adaspec.predict.features import CANDIDATE, TAIL


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


class Proposal(NamedTuple):
    """What is to be verified."""

    tokens: Tensor
    """(rows, cap) int64 the drafted and the copied tokens, -1 behind them."""
    survival: Tensor
    """(rows, cap) P(each of them and all before it are accepted), 0 behind them."""
    neural_len: Tensor
    ngram_len: Tensor
    expected: Tensor
    """(rows, 3) the tokens expected to be accepted, per source."""
    from_answers: Tensor
    """(rows,) whether tokens are copied from earlier answers."""


@dataclass
class Step:
    """One step of a batch."""

    slots: Tensor
    text: Text
    """The known text, and what was drafted."""
    context_tokens: Tensor
    sampled: Tensor
    """The tokens that the last step emitted; where there are none, nothing is drafted."""
    rows: Rows
    features: Tensor
    factors: Tensor = field(init=False)
    price: Tensor = field(init=False)
    expected: Expectations = field(init=False)
    """The survival of every source, and what is derived from it."""
    behind: list[Match] = field(default_factory=list)
    """The matches behind the tokens of each forward."""

    @property
    def decides(self) -> Tensor:
        """Whether each row has emitted a token, and so may be given a draft."""
        return self.sampled > 0

    @property
    def forwards(self) -> int:
        """The forwards that ran."""
        return len(self.behind)


class Predictor:
    """A model, for the rows of each step."""

    def __init__(
        self,
        model: DeviceModel,
        knobs: NDArray[np.float64],
        cap: int,
        answers: Answers | None = None,
    ) -> None:
        """`knobs` as `planner.memory.knob_row` has them; no draft is longer than `cap`.

        Where there are `answers` of earlier requests, they are looked up, too.
        """
        self.model = model
        self.answers = answers
        self.cap = cap
        self._knobs = [float(knob) for knob in knobs]

    @property
    def reads_drafts(self) -> bool:
        """Whether drafted tokens change what is expected."""
        return self.model.evidence is not None

    def begin(self, batch: Batch) -> Step:
        """Look at the text as it is now."""
        slots = batch.slots
        text = read_text(batch.tokens, batch.context_tokens, slots, LONGEST_NEURAL)
        match = best_match(look_up(text), self.answers, slots, text)
        prompt_tokens = batch.prompt_tokens[slots].long()
        rows = Rows(
            prompt_tokens=prompt_tokens,
            position=text.length - prompt_tokens,
            holds=batch.holds_neural[slots],
            match=match,
            tail=tail(text, TAIL),
            candidate=copied(text, self.answers, match.start, CANDIDATE),
        )
        features = observe(rows, self.model.tables)
        return Step(slots, text, text.length, batch.sampled.long(), rows, features)

    def expect(self, step: Step, price: Tensor, factors: Tensor) -> None:
        """Fill in what is expected before drafting.

        `price` is the worth of the time of verifying one token, in tokens; `factors` are the (3,)
        recalibration factors of the sources. Both are float64.
        """
        step.price, step.factors = price, factors
        step.expected = predict_before_drafting(
            self.model, self._knobs, step.rows, step.features, factors, price
        )

    def revise(self, step: Step, token: Tensor, confidence: Tensor) -> None:
        """Take in the tokens of a forward, -1 where there is none, and their confidences.

        `confidence` is (rows, 3) float32 in the order of `trace.schema.CONFIDENCES`.
        """
        token = token.long()
        step.text = append(step.text, token)
        drafted = step.rows.holds & (token >= 0)
        behind = best_match(look_up(step.text), self.answers, step.slots, step.text)
        behind = _matches_where(drafted, behind)
        step.behind.append(behind)
        if self.reads_drafts:
            step.expected = revise_by_draft(
                self.model,
                self._knobs,
                step.rows,
                step.expected,
                token,
                confidence,
                step.forwards,
                behind,
                step.factors,
                step.price,
                self.cap,
            )

    def choose(self, step: Step) -> Lengths:
        """What is worth verifying at the step's price, after the forwards that ran."""
        chosen = choose_at(
            step.expected,
            step.rows.match.available,
            step.price,
            step.forwards,
            self.cap,
            self.reads_drafts,
        )
        return chosen if self.reads_drafts else self._with_splices(step, chosen)

    def _with_splices(self, step: Step, chosen: Lengths) -> Lengths:
        """With what is worth copying behind the chosen neural tokens, where drafts are not read."""
        if not step.forwards:
            return chosen
        behind = _match_at(step.behind, chosen.neural)
        unknown = torch.full_like(chosen.neural, -1)
        expected = predict_splices(
            self.model,
            step.rows,
            chosen.expected,
            chosen.neural,
            unknown,
            unknown,
            behind,
            step.factors,
            step.price,
            self.cap,
        )
        expected = weigh_splices(expected, step.forwards, step.price)
        spliced = expected.splice_len.gather(1, chosen.neural[:, None])[:, 0]
        ngram = spliced.where(chosen.neural > 0, chosen.ngram)
        return Lengths(chosen.neural, ngram, expected)

    def extended(self, step: Step, chosen: Lengths) -> Lengths:
        """The chosen sources, as long as they can draft; another one where nothing was chosen.

        An engine that learns only later how much it can verify trims what is too long.
        """
        available = step.rows.match.available
        return extended(chosen, available, step.forwards, self.cap, self.reads_drafts)

    def emitted(self, step: Step) -> Tensor:
        """(rows, cap + 1) the tokens that the last step emitted, -1 behind them."""
        columns = torch.arange(self.cap + 1, device=step.sampled.device)
        places = (step.context_tokens - step.sampled)[:, None] + columns
        return tokens_at(step.text, places).where(columns < step.sampled[:, None], -1)

    def propose(self, step: Step, lengths: Lengths) -> Proposal:
        """The chosen tokens."""
        rows, neural_len = step.rows, lengths.neural
        start = rows.match.start
        if step.forwards:
            start = _match_at(step.behind, neural_len).start.where(neural_len > 0, start)
        columns, most = torch.arange(self.cap, device=start.device), neural_len[:, None]
        places = torch.where(
            columns < most, step.context_tokens[:, None] + columns, start[:, None] + columns - most
        )
        tokens = token_in_either(step.text, self.answers, places)
        inside = columns < (neural_len + lengths.ngram)[:, None]
        return Proposal(
            tokens=tokens.where(inside, -1),
            survival=survival_of(lengths, self.cap),
            neural_len=neural_len,
            ngram_len=lengths.ngram,
            expected=expected_tokens(lengths),
            from_answers=(start >= IN_ANSWERS) & (lengths.ngram > 0),
        )


def _matches_where(found: Tensor, match: Match) -> Match:
    """The matches of these rows; the others have none."""
    return Match(
        length=match.length.where(found, 0),
        start=match.start.where(found, -1),
        agree=match.agree.where(found, 0),
        seen=match.seen.where(found, 0),
        available=match.available.where(found, 0),
        follower=match.follower.where(found, -1),
    )


def _match_at(behind: list[Match], depths: Tensor) -> Match:
    """The matches behind so many tokens per row; where that is 0, they mean nothing."""
    place = (depths - 1).clamp(min=0)[:, None]
    return Match(
        *(torch.stack(facts, 1).gather(1, place)[:, 0] for facts in zip(*behind, strict=True))
    )
