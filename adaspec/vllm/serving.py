"""What is served and how, from an engine's config and the operator's options."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from adaspec.cost.model import CostModel
from adaspec.policy.learned import LearnedPolicy, ServedPolicy
from adaspec.policy.protocol import Setup
from adaspec.policy.shipped import GENERAL
from adaspec.policy.static import StaticPolicy, StaticRule
from adaspec.vllm.choice import RECORD_CAP, Choice, Target, choose, target_of
from adaspec.vllm.compatibility import installed_version
from adaspec.vllm.events import Observer, Serving
from adaspec.vllm.machine import hardware, same_hardware
from adaspec.vllm.options import Options
from adaspec.vllm.tracing import observers_of

log = logging.getLogger("vllm.adaspec")


LONG_S = 10.0
"""Seconds of a start that are worth a word."""
BETTER = (
    "; 'adaspec record' and 'adaspec train' make a policy of this model and your traffic, which "
    "gains more"
)
"""What the log says where the policy for any model serves."""


def recording_policy() -> StaticPolicy:
    """Proposes nothing, and gives no request the drafter: recorded requests get it anyway."""
    return StaticPolicy("record", StaticRule())


def serving_of(config: Any, options: Options) -> tuple[Choice, Serving]:
    """The chosen policy, and what is served by it; there are as many slots as sequences."""
    recording, has_head = options.mode == "record", options.model is not None
    target = target_of(config.model_config, options.vocabulary_hash)
    choice = choose(options, target, has_head)
    policy: ServedPolicy = recording_policy() if recording else choice.policy
    setup = Setup(
        cost=choice.cost,
        cap=choice.cap,
        neural_cap=choice.cap if has_head else 0,
        slots=config.scheduler_config.max_num_seqs,
        shows_tokens=has_head,
        shows_confidences=has_head,
    )
    fraction = options.record_fraction
    # The engines of a dense model do not know of each other: vLLM tells each of them that it is
    # alone, and leaves only an index behind.
    is_alone = options.replicas == 1
    replica = None if is_alone else int(config.parallel_config.data_parallel_index)
    return choice, Serving(
        policy=policy.name if recording else choice.spec,
        why=choice.why,
        mode=options.mode,
        setup=setup,
        target=target.name,
        drafter=options.model,
        record_fraction=float(recording) if fraction is None else fraction,
        # A live server drafts less for recorded requests than a splice's cap allows.
        record_cap=setup.neural_cap if recording else min(setup.neural_cap, RECORD_CAP),
        version=_version(policy),
        serve_fraction=options.serve_fraction,
        max_context_tokens=options.max_context_tokens,
        max_drafted_tokens=options.max_drafted_tokens,
        tokenizer=target.tokenizer,
        vocabulary_hash=target.vocabulary_hash,
        vocabulary=target.vocabulary,
        engine_version=installed_version(),
        hardware=options.hardware or hardware(),
        memory_bytes=options.memory_bytes,
        memory_file=memory_file(options.memory_dir, replica),
        replica=replica,
    )


def started(
    config: Any, options: Options
) -> tuple[LearnedPolicy | StaticPolicy, Serving, list[Observer]]:
    """The policy of one rank, what it serves, and who observes that; the first rank logs it."""
    choice, serving = serving_of(config, options)
    policy = recording_policy() if options.mode == "record" else choice.policy
    assert isinstance(policy, LearnedPolicy | StaticPolicy)  # others are refused before
    if config.parallel_config.rank != 0:
        return policy, serving, []
    announce(config, choice, serving, options)
    return policy, serving, observers_of(options, serving)


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


def announce(config: Any, choice: Choice, serving: Serving, options: Options) -> None:
    """Log what is served and by what, and what is in doubt about it."""
    log.info(
        "adaspec: policy '%s' (%s), mode %s, model runner %s, drafts of at most %d tokens, "
        "drafter %s, costs '%s' (%s)%s%s",
        choice.spec,
        choice.why,
        options.mode,
        options.runner,
        serving.setup.cap,
        options.model or "none: n-gram alone",
        choice.cost_name,
        choice.cost_why,
        " until they are measured" if options.measures else "",
        BETTER if choice.spec == GENERAL and options.mode != "record" else "",
    )
    if options.writes and not getattr(config, "shutdown_timeout", 0):
        log.info(
            "adaspec: requests that run when the server is stopped are aborted, and kept as far as "
            "they came%s: --shutdown-timeout SECONDS lets them end first",
            ", but for recorded ones with a name" if options.mode == "record" else "",
        )
    if options.mode == "record":
        return
    if choice.doubt:
        log.warning("adaspec: %s", choice.doubt)
    target = target_of(config.model_config, options.vocabulary_hash)
    mismatch = _cost_mismatch(choice.cost, target, options.hardware or hardware())
    if mismatch and not options.measures and weighs_costs(options, choice.policy):
        log.warning("adaspec: cost model %s was %s", choice.cost_name, mismatch)


def weighs_costs(options: Options, policy: ServedPolicy) -> bool:
    """Whether a server of this policy decides by what steps cost."""
    return options.mode != "record" and not isinstance(policy, StaticPolicy)


def memory_file(folder: str | None, replica: int | None) -> Path | None:
    """The file in which an engine keeps earlier answers."""
    if folder is None:
        return None
    return Path(folder) / ("answers.jsonl" if replica is None else f"answers-{replica}.jsonl")


def _version(policy: ServedPolicy) -> str:
    """An identifier that tells one training of a policy from another."""
    if not isinstance(policy, LearnedPolicy) or policy.manifest is None:
        return ""
    return f"{policy.manifest.fingerprint} adaspec {policy.manifest.adaspec_version}"


def _cost_mismatch(cost: CostModel, target: Target, device: str) -> str:
    """A warning if the cost model was measured on another device or with another model."""
    measured = []
    if cost.hardware is not None and not same_hardware(cost.hardware, device):
        measured.append(f"on {cost.hardware}, this is {device}")
    if cost.target is not None and not target.is_called(cost.target):
        measured.append(f"with {cost.target}, this is {target.name}")
    advice = "decisions weigh other step times than this server's; 'adaspec profile' measures these"
    return f"measured {' and '.join(measured)}: {advice}" if measured else ""
