"""The session of one rank, from its engine's config and the options that were chosen for it."""

from __future__ import annotations

from typing import Any

import torch
from msgspec import structs

from adaspec.cost.engine import ASYNC, SYNC
from adaspec.cost.load import cost_from_document
from adaspec.errors import ServingError
from adaspec.policy.protocol import Setup
from adaspec.predict.model import LONGEST_NGRAM
from adaspec.vllm.choice import Serving, digest_of, named_policy, target_of
from adaspec.vllm.options import IN_ONE_PASS, Options
from adaspec.vllm.session.session import Session
from adaspec.vllm.tracing import observers_of


def session_of(config: Any, options: Options, device: torch.device, copy_stream: Any) -> Session:
    """The session that serves the requests of one rank; that of the first rank is observed."""
    parallel = config.parallel_config
    if options.replica is not None:
        # vLLM tells each engine of a dense model that it is alone, and leaves only an index behind.
        options = structs.replace(options, replica=int(parallel.data_parallel_index))
    target = target_of(config.model_config, options.vocabulary_hash)
    slots = config.scheduler_config.max_num_seqs
    assert options.policy is not None
    policy = named_policy(options.policy)
    if options.policy_digest not in (None, digest_of(options.policy)):
        # Ranks with different policies would wait for each other forever.
        raise ServingError(
            f"policy '{options.policy}' changed while the server was starting: start it again, now "
            "that its folder is as it should be"
        )
    serving = Serving(policy, options, setup_of(options, slots), target)
    session = Session(serving, device, copy_stream)
    if parallel.rank == 0:
        session.observers.add(*observers_of(serving))
    return session


def setup_of(options: Options, slots: int) -> Setup:
    """What holds for decisions on so many requests at once."""
    assert options.num_speculative_tokens is not None and options.costs is not None
    is_async, has_head = options.runner == "V2", options.model is not None
    cap = options.num_speculative_tokens
    if not is_async:  # as many tokens are scheduled on V2 as vLLM is told
        cap = min(cap, LONGEST_NGRAM)  # no curve reaches further
    return Setup(
        cost=cost_from_document(options.costs, "costs"),
        cap=cap,
        neural_cap=cap if has_head else 0,
        slots=slots,
        shows_tokens=has_head,
        shows_confidences=has_head,
        engine=ASYNC if is_async else SYNC,
        longest_s=None if options.max_step_ms is None else options.max_step_ms / 1e3,
        in_one_pass=options.draft_method in IN_ONE_PASS,
    )
