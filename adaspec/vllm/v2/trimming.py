"""Verifies of all drafts the tokens that are likeliest to be accepted, as many as the budget holds.

vLLM trims drafts on the device where its adaptive verification is on. Here the budget and the
order are the policy's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaspec.errors import ServingError
from adaspec.kernels.batch import to_device
from adaspec.policy.budget import keep_likeliest, ranked
from adaspec.policy.protocol import Ints
from adaspec.vllm.session.drafting import has_kernels
from adaspec.vllm.session.session import Session


def take_over(manager: Any, session: Session, largest_graph: int | None) -> None:
    """Make vLLM's manager of adaptive verification follow the session.

    `largest_graph` is the most tokens of a step that runs in a CUDA graph; None: none does.
    """
    base = type(manager)
    if getattr(manager, "_copy_admitted_drafts_to_host", False):
        raise ServingError(
            "method 'adaspec' does not go with batch-sharded sampling, which waits for the number "
            "of verified drafts of every row: switch it off"
        )
    manager.__class__ = type(f"AdaSpec{base.__name__}", (_Trimming, base), {})
    manager.adaspec_session, manager.adaspec_largest_graph = session, largest_graph
    # vLLM 0.33 asks what became of each row's draft on the host, where that is not known before.
    manager.adaspec_unknown_counts = hasattr(sys.modules[base.__module__], "AdmittedDraftCounts")
    manager._confidence_probs.zero_()
    warm_up(manager)


def warm_up(manager: Any) -> None:
    """Compile what trims drafts: the same for any batch and any budget."""
    manager._batch_budget = ({}, {}, 0)
    slots = torch.zeros(0, dtype=torch.int64, device=manager.query_start_loc.device)
    manager.reallocate_drafts([], slots)


class _Trimming:
    """What differs from vLLM's own manager, whose class has this as its first base."""

    adaspec_session: Session
    adaspec_largest_graph: int | None
    adaspec_unknown_counts: bool
    num_bonus_tokens: int
    query_start_loc: Tensor
    _cu_num_logits: Tensor
    _max_total_logits: int
    _confidence_probs: Tensor
    _batch_budget: Any

    def batches_to_profile(self, capture_sizes: list[int]) -> Iterator[dict[str, int]]:
        """None: the policy has costs of its own."""
        return iter(())

    def set_initial_cost_curves(self, samples: Iterable[Any]) -> None:
        """None are needed."""

    def add_request(self, req_idx: int) -> None:
        """Nothing is drafted for it yet."""
        self._confidence_probs[req_idx].zero_()

    def record_confidences(self, confidence_probs: Tensor, input_batch: Any) -> None:
        """Take in the survival of this step's drafts; vLLM would keep what makes it up."""
        survival = confidence_probs[: input_batch.num_reqs]
        self._confidence_probs.index_copy_(0, input_batch.idx_mapping, survival)

    def get_num_tokens(
        self, num_tokens_per_req: dict[str, int], draft_tokens: dict[str, list[int]]
    ) -> int:
        """How many tokens the step runs on, with as many drafted ones as the budget says."""
        drafts = {name: len(draft_tokens.get(name, ())) for name in num_tokens_per_req}
        others = {name: tokens - drafts[name] for name, tokens in num_tokens_per_req.items()}
        scheduled = sum(drafts.values())
        room = max(0, self._max_total_logits - len(drafts) * self.num_bonus_tokens)
        without = sum(others.values())
        most, largest = min(scheduled, room), self.adaspec_largest_graph
        # On an H100 a step that was somewhat too long for all graphs took half as much again, which
        # its least likely tokens are rarely worth. Where prompts alone are too long, none is cut.
        if largest is not None and without <= largest:
            most = min(most, largest - without)
        running = int(np.count_nonzero(list(drafts.values())))
        budget = self.adaspec_session.budget(running, most, without - running)
        self._batch_budget = (drafts, others, budget)
        return without + budget

    def reallocate_drafts(
        self, req_ids: list[str], idx_mapping: Tensor
    ) -> tuple[Tensor, Tensor, int] | tuple[Tensor, Tensor, int, None]:
        """Where each row's logits and tokens begin on the device, and how many drafts there are."""
        (drafts, others, budget), self._batch_budget = self._batch_budget, None
        facts = np.array(
            [[drafts[name] for name in req_ids], [others[name] for name in req_ids]], np.int32
        )
        survival, bonus = self._confidence_probs, self.num_bonus_tokens
        logits, tokens = self._cu_num_logits, self.query_start_loc
        if has_kernels(tokens.device):
            from adaspec.kernels.serving import launch

            scheduled, moved = int(facts[0].sum()), to_device(facts, tokens.device)
            launch(survival, idx_mapping, moved, budget, scheduled, bonus, logits, tokens)
        else:
            trim_on_host(survival, idx_mapping, facts, budget, logits, tokens, bonus)
        found = logits[: len(req_ids) + 1], tokens, budget
        return (*found, None) if self.adaspec_unknown_counts else found


def trim_on_host(
    survival: Tensor,
    slots: Tensor,
    facts: Ints,
    budget: int,
    cu_num_logits: Tensor,
    query_start_loc: Tensor,
    bonus: int,
) -> None:
    """Fill in `cu_num_logits` and `query_start_loc` as vLLM's `reallocate_drafts` does, on a CPU.

    `survival` is (slots, cap); `facts` are (2, rows): the drafted tokens that are scheduled for a
    row, and its other tokens.
    """
    lengths, others = facts.astype(np.int64)
    offered = survival.numpy()[slots.numpy()].astype(np.float64)
    offered = np.where(offered > 0, offered, 0.0)  # what is none is as good as 0
    keep_likeliest(ranked(offered, lengths), offered, lengths, budget)
    ends = len(lengths) + 1
    logits, tokens = cu_num_logits.numpy(), query_start_loc.numpy()
    logits[0] = tokens[0] = 0
    logits[1:ends], tokens[1:ends] = (lengths + bonus).cumsum(), (lengths + others).cumsum()
    tokens[ends:] = tokens[ends - 1]


def largest_graph(config: Any) -> int | None:
    """The most tokens of a step that runs in a CUDA graph, by vLLM's compilation config.

    None, too, where steps that read a prompt never do.
    """
    from vllm.config.compilation import CUDAGraphMode

    sizes, mode = config.cudagraph_capture_sizes, config.cudagraph_mode
    return max(sizes) if sizes and mode.mixed_mode() != CUDAGraphMode.NONE else None
