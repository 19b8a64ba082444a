"""A learned policy whose every step is computed on torch tensors, too, and compared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from adaspec.device.lengths import Lengths
from adaspec.device.predictor import Batch as DeviceBatch
from adaspec.device.predictor import Predictor, Step
from adaspec.policy.base import BasePolicy
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.choose import choose_sources, extend
from adaspec.policy.planner.memory import LONGEST_SPLICE
from adaspec.policy.planner.stages import rows_of
from adaspec.policy.protocol import Arrival, Batch, Drafts, Outcome, Proposal, Setup

LONGEST_CONTEXT = 2048
TOLERANCE = 1e-5


MakePredictor = Callable[[LearnedPolicy, Setup], Predictor]


class Twin(BasePolicy):
    """Chooses as the host's policy does, and holds the device's to it.

    The tensors are laid out as an engine has them: buffers over all slots, in which the last
    request of a slot has left its tokens, and rows in the batch's order.
    """

    def __init__(self, host: LearnedPolicy, make_predictor: MakePredictor) -> None:
        self.name, self.host, self._make_predictor = host.name, host, make_predictor
        self.rows = self.choices = self.other_choices = 0
        """Rows compared; choices compared, and how many were others, of drafts as good."""

    @property
    def needs(self) -> object:
        return self.host.needs

    def start(self, setup: Setup) -> None:
        self.host.start(setup)
        self.predictor = self._make_predictor(self.host, setup)
        slots = setup.slots
        self._tokens = torch.randint(0, 3, (slots, LONGEST_CONTEXT), dtype=torch.int32)
        self._context = torch.zeros(slots, dtype=torch.int32)
        self._prompt = torch.zeros(slots, dtype=torch.int32)
        self._holds = torch.zeros(slots, dtype=torch.bool)
        self._sampled = torch.zeros(slots, dtype=torch.int32)
        self._rejected = torch.zeros(slots, dtype=torch.int32)
        self._entered: list[int] = []

    def admit(self, arrival: Arrival) -> bool:
        self._entered.append(arrival.slot)
        return self.host.admit(arrival)

    def keep(self, batch: Batch) -> bool:
        return self.host.keep(batch)

    def plan(self, batch: Batch) -> int:
        planned = self.host.plan(batch)
        planner, slots = self.host.planner, torch.from_numpy(batch.slots).long()
        self._fill_buffers(batch)
        self._prefill()
        self.step = self._begin(slots)
        price = float(planner.budget.step["price"][0])
        self.predictor.expect(
            self.step,
            torch.tensor(price, dtype=torch.float64),
            torch.from_numpy(planner.memory.record["factor"].copy()),
        )
        self._compare_before(batch)
        return planned

    def _prefill(self) -> None:
        """Read the prompts of requests that have entered in two pieces; the second emits a token.

        The engine asks for drafts after the first, too, and drops them.
        """
        slots = torch.tensor(self._entered, dtype=torch.int64)
        self._sampled[slots], self._rejected[slots] = 0, 0
        self._context[slots] -= 1
        step = self._begin(slots)
        self.predictor.expect(step, torch.tensor(0.1, dtype=torch.float64), torch.ones(3).double())
        self.predictor.propose(step, self.predictor.choose(step))
        self._context[slots] += 1
        self._sampled[slots] = 1
        self._entered.clear()

    def _begin(self, slots: torch.Tensor) -> Step:
        return self.predictor.begin(
            DeviceBatch(
                slots,
                self._tokens,
                self._context,
                self._prompt,
                self._holds,
                self._sampled[slots],
                self._rejected[slots],
            )
        )

    def _fill_buffers(self, batch: Batch) -> None:
        known = batch.context_tokens
        texts = batch.context.tail(int(known.max()))
        for row, slot in enumerate(batch.slots.tolist()):
            self._tokens[slot, : known[row]] = torch.from_numpy(texts[row, -known[row] :])
            self._context[slot], self._prompt[slot] = int(known[row]), int(batch.prompt_tokens[row])
            self._holds[slot] = bool(batch.holds_neural[row])

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        goes_on = self.host.proceed(batch, drafts)
        self._revise(drafts)
        return goes_on

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        if self.predictor.reads_drafts:
            self.host._observe(batch, drafts)
        if self.step.forwards < drafts.count:
            self._revise(drafts)
        chosen = self.predictor.choose(self.step)
        if self.predictor.reads_drafts:
            self._compare_choice(drafts.count, chosen)
        proposal = self.host.settle(batch, drafts)
        taken = Lengths(
            torch.from_numpy(proposal.neural_len).long(),
            torch.from_numpy(proposal.ngram_len).long(),
            chosen.expected,
        )
        self.proposed = self.predictor.propose(self.step, taken)
        self._compare_proposal(batch, drafts, proposal)
        return proposal

    def learn(self, batch: Batch, proposal: Proposal, outcome: Outcome) -> None:
        self.host.learn(batch, proposal, outcome)
        slots = torch.from_numpy(batch.slots).long()
        self._sampled[slots] = torch.from_numpy(outcome.emitted_tokens.astype(np.int32))
        rejected = (outcome.drafted - outcome.accepted).astype(np.int32)
        self._rejected[slots] = torch.from_numpy(rejected)

    def release(self, slots: np.ndarray) -> None:
        self.host.release(slots)

    def _revise(self, drafts: Drafts) -> None:
        """Show the device the newest forward's tokens, and compare what it makes of them."""
        depth = drafts.count
        assert self.step.forwards == depth - 1
        self.predictor.revise(
            self.step,
            torch.from_numpy(drafts.tokens[:, depth - 1].copy()),
            torch.from_numpy(drafts.confidences[:, depth - 1].copy()),
        )
        if self.predictor.reads_drafts:
            self._compare_curves(depth)

    def _compare_before(self, batch: Batch) -> None:
        memory, step, count = self.host.planner.memory, self.step, len(batch)
        self.rows += count
        self._compare("features", memory.features[:count], step.features)
        self._compare_curves(0)

    def _compare_curves(self, depth: int) -> None:
        memory, expected, rows = self.host.planner.memory, self.step.expected, len(self.step.slots)
        self._compare("neural survival", memory.neural[:rows], expected.neural)
        self._compare("n-gram survival", memory.ngram[:rows], expected.ngram)
        value, found = memory.splice_value[:rows, 1:], expected.splice_value[:, 1:]
        self._compare("splice value per token", value / LONGEST_SPLICE, found / LONGEST_SPLICE)
        behind = slice(1, depth + 1)
        lengths = memory.splice_len[:rows, behind, None]
        kept = np.arange(1, memory.splice.shape[2]) <= lengths
        self._compare(
            "splice survival",
            memory.splice[:rows, behind, 1:] * kept,
            expected.splice[:, behind, 1:] * torch.from_numpy(kept),
        )
        if self.predictor.reads_drafts:
            np.testing.assert_array_equal(expected.agreed.numpy(), memory.agreed[:rows])
            np.testing.assert_array_equal(expected.least.numpy(), memory.least_confidence[:rows])

    def _compare_choice(self, count: int, chosen: Lengths) -> None:
        """Equal lengths, but where two drafts are worth the same; then as far as they go."""
        planner, price = self.host.planner, float(self.step.price)
        memory, rows, cap = planner.memory, rows_of(planner), int(planner.limits["cap"][0])
        neural, ngram = np.zeros((2, len(rows.slots)), np.int32)
        choose_sources(memory, rows, count, price, cap, True, neural, ngram)
        pairs = np.stack([neural, ngram], 1)
        theirs = torch.stack([chosen.neural, chosen.ngram], 1).numpy()
        self.choices += len(pairs)
        for row in np.flatnonzero((pairs != theirs).any(1)):
            self.other_choices += 1
            worth = [self._worth(row, *pair) for pair in (pairs[row], theirs[row])]
            assert abs(worth[0] - worth[1]) < TOLERANCE, (pairs[row], theirs[row], worth)
        same = (pairs == theirs).all(1)
        extended = self.predictor.extended(self.step, chosen)
        extend(memory, rows, count, cap, True, neural, ngram)
        longer = torch.stack([extended.neural, extended.ngram], 1).numpy()
        np.testing.assert_array_equal(longer[same], np.stack([neural, ngram], 1)[same])

    def _worth(self, row: int, neural_len: int, ngram_len: int) -> float:
        """What a draft of these lengths is worth by the host's curves, price paid."""
        memory, price = self.host.planner.memory, float(self.step.price)
        if neural_len == 0:
            return float((memory.ngram[row, 1 : ngram_len + 1] - price).sum())
        neural, splice = memory.neural[row], memory.splice[row, neural_len]
        spliced = neural[neural_len] * splice[1 : ngram_len + 1] - price
        return float((neural[1 : neural_len + 1] - price).sum() + spliced.sum())

    def _compare_proposal(self, batch: Batch, drafts: Drafts, proposal: Proposal) -> None:
        """The proposed tokens are those that the text and the draft say, one by one."""
        behind = drafts.behind(proposal.neural_len) if drafts.count else batch.matches
        start = np.where(proposal.neural_len > 0, behind.start, batch.matches.start)
        known = batch.context_tokens
        for row in range(len(batch)):
            neural, ngram = int(proposal.neural_len[row]), int(proposal.ngram_len[row])
            text = self._tokens[batch.slots[row], : known[row]].tolist()
            text += drafts.tokens[row, :neural].tolist()
            tokens = text[known[row] :] + text[start[row] : start[row] + ngram]
            padded = tokens + [-1] * (self.predictor.cap - len(tokens))
            assert self.proposed.tokens[row].tolist() == padded
            survival = self.proposed.survival[row].numpy()
            expected = self.proposed.expected[row].numpy()
            assert (np.diff(survival[: len(tokens)]) <= 1e-12).all()
            assert not survival[len(tokens) :].any()
            if neural == 0:
                assert abs(survival.sum() - expected[0]) < TOLERANCE
            else:
                assert abs(survival[:neural].sum() - expected[1]) < TOLERANCE

    def _compare(self, what: str, host: np.ndarray, device: torch.Tensor) -> None:
        found = device.numpy().astype(np.float64)
        wanted = np.asarray(host, np.float64)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted), err_msg=what)
        difference = np.nan_to_num(np.abs(found - wanted) / np.maximum(np.abs(wanted), 1.0))
        largest = float(difference.max(initial=0.0))
        assert largest < TOLERANCE, (what, largest)
