"""The session of one rank, from its engine's config and the options that were chosen for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from adaspec.cost.engine import ASYNC, SYNC
from adaspec.cost.load import cost_from_document
from adaspec.errors import ServingError
from adaspec.policy.learned import ServedPolicy
from adaspec.policy.planner.state import LONGEST_NGRAM
from adaspec.policy.protocol import Setup
from adaspec.policy.static import StaticPolicy, StaticRule
from adaspec.vllm.choice import RECORD_CAP, digest_of, named_policy, target_of
from adaspec.vllm.compatibility import installed_version
from adaspec.vllm.events import Serving
from adaspec.vllm.options import Options
from adaspec.vllm.session.session import Session
from adaspec.vllm.tracing import observers_of

log = logging.getLogger("vllm.adaspec")

LONG_S = 10.0
"""Seconds of a start that are worth a word."""


def session_of(config: Any, options: Options, device: torch.device, copy_stream: Any) -> Session:
    """The session that serves the requests of one rank; that of the first rank is observed."""
    policy = policy_of(options)
    serving = _serving_of(config, options, policy)
    is_alone = config.parallel_config.tensor_parallel_size == 1
    session = Session(policy, serving, device, copy_stream, stop_if_slow=is_alone)
    if config.parallel_config.rank == 0:
        session.observers.add(*observers_of(options, serving))
    return session


def policy_of(options: Options) -> ServedPolicy:
    """The policy that was chosen as the server started."""
    if options.mode == "record":
        # Proposes nothing, and gives no request the drafter: recorded requests get it anyway.
        return StaticPolicy("record", StaticRule())
    assert options.policy is not None
    policy = named_policy(options.policy)
    if options.policy_digest not in (None, digest_of(options.policy)):
        # Ranks with different policies would wait for each other forever.
        raise ServingError(
            f"policy '{options.policy}' changed while the server was starting: start it again, now "
            "that its folder is as it should be"
        )
    return policy


def _serving_of(config: Any, options: Options, policy: ServedPolicy) -> Serving:
    """What is served by the policy; there are as many slots as sequences."""
    assert options.policy is not None and options.num_speculative_tokens is not None
    assert options.costs is not None
    recording, has_head = options.mode == "record", options.model is not None
    target = target_of(config.model_config, options.vocabulary_hash)
    is_async = options.runner == "V2"
    longest = options.num_speculative_tokens
    # On V2 as many tokens are scheduled as vLLM is told. Otherwise, no curve reaches further.
    cap = longest if is_async else min(longest, LONGEST_NGRAM)
    setup = Setup(
        cost=cost_from_document(options.costs, "costs"),
        cap=cap,
        neural_cap=cap if has_head else 0,
        slots=config.scheduler_config.max_num_seqs,
        shows_tokens=has_head,
        shows_confidences=has_head,
        engine=ASYNC if is_async else SYNC,
    )
    fraction = options.record_fraction
    # The engines of a dense model do not know of each other: vLLM tells each of them that it is
    # alone, and leaves only an index behind.
    is_alone = options.replicas == 1
    replica = None if is_alone else int(config.parallel_config.data_parallel_index)
    # A live server drafts less for recorded requests than a splice's cap allows.
    record_cap = longest if recording else min(cap, RECORD_CAP)
    return Serving(
        policy=policy.name if recording else options.policy,
        why=options.policy_why,
        mode=options.mode,
        setup=setup,
        target=target.name,
        drafter=options.model,
        record_fraction=float(recording) if fraction is None else fraction,
        record_cap=record_cap if has_head else 0,
        version=_version(policy),
        serve_fraction=options.serve_fraction,
        max_context_tokens=options.max_context_tokens,
        max_drafted_tokens=options.max_drafted_tokens,
        tokenizer=target.tokenizer,
        vocabulary_hash=target.vocabulary_hash,
        vocabulary=target.vocabulary,
        engine_version=installed_version(),
        hardware=options.hardware,
        memory_bytes=options.memory_bytes,
        memory_file=_memory_file(options.memory_dir, replica),
        replica=replica,
    )


@contextmanager
def compiling() -> Iterator[None]:
    """Say so if that takes long, as it does at the first start after an installation."""
    began_s = perf_counter()
    yield
    took_s = perf_counter() - began_s
    if took_s > LONG_S:
        log.info(
            "adaspec: what decides was compiled in %.0f s, which is kept for later starts", took_s
        )


def _memory_file(folder: str | None, replica: int | None) -> Path | None:
    """The file in which an engine keeps earlier answers."""
    if folder is None:
        return None
    return Path(folder) / ("answers.jsonl" if replica is None else f"answers-{replica}.jsonl")


def _version(policy: ServedPolicy) -> str:
    """An identifier that tells one training of a policy from another."""
    if isinstance(policy, StaticPolicy) or policy.manifest is None:
        return ""
    return f"{policy.manifest.fingerprint} adaspec {policy.manifest.adaspec_version}"
