"""The learned policy's choice per row, step after step, without a look back at the host.

    enter(slots)                requests take these slots
    begin(batch) -> Step        the last step's outcome, the look-up, the features
    expect(step, ..)            what is expected before drafting
    revise(step, ..)            after each forward: its tokens, and what is expected by them
    choose(step), choose_within(step, ..)   what is verified, at the price or within a budget
    extended(step, lengths)     the same sources, as long as they can draft
    propose(step, lengths)      its tokens; the step is kept in mind until its outcome is known

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
from adaspec.device.features import History, Outcome, Rows, new_history, observe, remember
from adaspec.device.lengths import (
    Lengths,
    choose_at,
    choose_within,
    expected_tokens,
    extended,
    ngram_value,
    survival_of,
    within,
)
from adaspec.device.lookup import (
    Match,
    Text,
    append,
    copies,
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
    past: History
    features: Tensor
    factors: Tensor = field(init=False)
    price: Tensor = field(init=False)
    expected: Expectations = field(init=False)
    """The survival of every source, and what is derived from it."""
    ngram_value: Tensor = field(init=False)
    """(rows,) what the best copy is worth before drafting."""
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


class _Proposed(NamedTuple):
    """What each slot was proposed last, and on which match that was decided."""

    context_tokens: Tensor
    """The known tokens then, by which an outcome is known to be its; -1 where there is none."""
    length: Tensor
    start: Tensor
    candidate: Tensor
    neural_len: Tensor


class Predictor:
    """A model, and what it remembers of the request in each slot."""

    def __init__(
        self,
        model: DeviceModel,
        knobs: NDArray[np.float64],
        slots: int,
        cap: int,
        answers: Answers | None = None,
    ) -> None:
        """`knobs` as `planner.memory.knob_row` has them; no draft is longer than `cap`.

        Where there are `answers` of earlier requests, they are looked up, too.
        """
        self.model, device = model, model.device
        self.answers = answers
        self.cap = cap
        self._knobs = [float(knob) for knob in knobs]
        self._fresh = new_history(device)
        self.history = self._fresh.repeat(slots, 1)
        none = torch.full((slots,), -1, device=device)
        self._proposed = _Proposed(
            context_tokens=none,
            length=none.clone(),
            start=none.clone(),
            candidate=none[:, None].repeat(1, CANDIDATE),
            neural_len=none.clone(),
        )

    @property
    def reads_drafts(self) -> bool:
        """Whether drafted tokens change what is expected."""
        return self.model.evidence is not None

    def enter(self, slots: Tensor) -> None:
        """Requests take these slots: what their predecessors did is forgotten."""
        self.history.index_copy_(0, slots, self._fresh.expand(len(slots), -1))
        self._proposed.context_tokens.index_fill_(0, slots, -1)

    def begin(self, batch: Batch) -> Step:
        """Take in the outcome of the last step, and look at the text as it is now."""
        slots = batch.slots
        text = read_text(batch.tokens, batch.context_tokens, slots, LONGEST_NEURAL)
        state = remember(self.history[slots], self._outcome(batch, text))
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
        features, state = observe(rows, state, self.model.tables)
        self.history.index_copy_(0, slots, state)
        sampled = batch.sampled.long()
        return Step(slots, text, text.length, sampled, rows, History.of(state), features)

    def _outcome(self, batch: Batch, text: Text) -> Outcome:
        """What became of the last proposals, where it is theirs that the engine verified."""
        proposed = _Proposed(*(column[batch.slots] for column in self._proposed))
        sampled, rejected = batch.sampled.long(), batch.rejected.long()
        before = text.length - sampled
        accepted = sampled - 1
        drafted = accepted + rejected
        return Outcome(
            length=proposed.length,
            start=proposed.start,
            candidate=proposed.candidate,
            drafted=drafted,
            neural_drafted=proposed.neural_len.minimum(drafted),
            accepted=accepted,
            emitted=copies(text, before, CANDIDATE),
            emitted_tokens=sampled.where(proposed.context_tokens == before, 0),
        )

    def expect(self, step: Step, price: Tensor, factors: Tensor) -> None:
        """Fill in what is expected before drafting.

        `price` is the worth of the time of verifying one token, in tokens; `factors` are the (3,)
        recalibration factors of the sources. Both are float64.
        """
        step.price, step.factors = price, factors
        step.expected = predict_before_drafting(
            self.model, self._knobs, step.rows, step.features, factors, price
        )
        step.ngram_value = ngram_value(step.expected, step.rows.match.available, price, self.cap)

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
                step.past,
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

    def choose_within(self, step: Step, budget: Tensor, least_price: Tensor) -> Lengths:
        """The same at a price, this one or a higher one, at which no more tokens are verified."""
        chosen = choose_within(
            step.expected,
            step.rows.match.available,
            least_price,
            budget,
            step.forwards,
            self.cap,
            self.reads_drafts,
        )
        if self.reads_drafts:
            return chosen
        # A neural token may be worth any price for the splice that is hoped for behind it, and how
        # long that is shows only now: what is left of the budget goes to the first rows.
        neural = within(chosen.neural, budget)
        ngram = within(chosen.ngram, budget - neural.sum())
        chosen = chosen._replace(neural=neural, ngram=ngram)
        spliced = self._with_splices(step, chosen)
        added = within(spliced.ngram - ngram, budget - chosen.tokens)
        return spliced._replace(ngram=ngram + added)

    def _with_splices(self, step: Step, chosen: Lengths) -> Lengths:
        """With what is worth copying behind the chosen neural tokens, where drafts are not read."""
        if not step.forwards:
            return chosen
        behind = _match_at(step.behind, chosen.neural)
        unknown = torch.full_like(chosen.neural, -1)
        expected = predict_splices(
            self.model,
            step.rows,
            step.past,
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
        """The chosen tokens; they are kept in mind until `begin` learns their outcome."""
        rows, neural_len = step.rows, lengths.neural
        last = _Proposed(
            context_tokens=step.context_tokens.where(step.decides, -1),
            length=rows.match.length,
            start=rows.match.start,
            candidate=rows.candidate,
            neural_len=neural_len,
        )
        for column, values in zip(self._proposed, last, strict=True):
            column.index_copy_(0, step.slots, values)
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
