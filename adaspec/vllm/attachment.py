"""Puts a session into one of vLLM's model runners, as that runner is made."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from types import MethodType
from typing import Any

import numpy as np

from adaspec.cost.model import CostModel
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Ints, Policy, Setup
from adaspec.policy.static import StaticPolicy
from adaspec.vllm.choice import RECORD_CAP, Target, choose, target_of
from adaspec.vllm.compatibility import (
    draft_to_the_end,
    mend_expansion,
    mend_undrafted_steps,
    replica_of,
)
from adaspec.vllm.head import HeadMixin
from adaspec.vllm.machine import hardware, same_hardware
from adaspec.vllm.ngram import NgramDrafter
from adaspec.vllm.observer import Serving
from adaspec.vllm.options import Options
from adaspec.vllm.rehearsal import rehearse
from adaspec.vllm.running import EngineBatch
from adaspec.vllm.session import Recording, Session
from adaspec.vllm.signatures import check_runner, installed_version
from adaspec.vllm.watching import observers_of

log = logging.getLogger("vllm.adaspec")


def attach(runner: Any, options: Options) -> None:
    """Let the runner's drafter draft by the policy that these options name."""
    drafter = getattr(runner, "drafter", None)
    if drafter is None:
        return
    check_runner(runner, None if isinstance(drafter, NgramDrafter) else drafter)
    mend_expansion()
    mend_undrafted_steps()
    session = session_of(runner, options)
    limit = draft_to_the_end(runner)
    if not isinstance(drafter, NgramDrafter):
        base = type(drafter)
        drafter.__class__ = type(f"AdaSpec{base.__name__}", (HeadMixin, base), {})
        drafter.adaspec_limit = limit
    runner.adaspec_session = session
    runner.propose_draft_token_ids = MethodType(_hook(runner.propose_draft_token_ids), runner)


def session_of(runner: Any, options: Options) -> Session:
    """The session that serves a runner's requests."""
    config = runner.vllm_config
    has_head = options.model is not None
    target = target_of(config.model_config, options.vocabulary_hash)
    choice = choose(options, target, has_head)
    here = options.hardware or hardware()
    policy: Policy = Recording() if options.mode == "record" else choice.policy
    setup = Setup(
        cost=choice.cost,
        cap=choice.cap,
        neural_cap=choice.cap if has_head else 0,
        # Preempted requests keep their slots, as far as these go.
        slots=2 * runner.scheduler_config.max_num_seqs,
        shows_tokens=has_head,
        shows_confidences=has_head,
    )
    parallel = config.parallel_config
    rank = parallel.rank
    fraction = options.record_fraction
    if fraction is None:
        fraction = 1.0 if options.mode == "record" else 0.0
    serving = Serving(
        policy=policy.name if options.mode == "record" else choice.spec,
        why=choice.why,
        mode=options.mode,
        setup=setup,
        target=target.name,
        drafter=options.model,
        rank=rank,
        record_fraction=fraction,
        record_cap=_record_cap(options, setup),
        version=_version(policy),
        # A class of one's own may choose by chance; all others always choose alike.
        propensity=None if choice.spec.startswith("python:") else 1.0,
        tokenizer=target.tokenizer,
        vocabulary_hash=target.vocabulary_hash,
        vocabulary=target.vocabulary,
        engine_version=installed_version(),
        hardware=here,
        replica=replica_of(parallel, options.replicas),
    )
    alone = config.parallel_config.tensor_parallel_size == 1
    rehearse(Session(policy, serving, target.vocabulary, watch=False))
    session = Session(policy, serving, target.vocabulary, watch=alone)
    if rank == 0:
        session.watched_by(*observers_of(options, serving))
        log.info(
            "adaspec: policy '%s' (%s), mode %s, drafts of at most %d tokens, drafter %s, "
            "cost model %s (%s)",
            choice.spec,
            choice.why,
            options.mode,
            choice.cap,
            options.model or "none: n-gram alone",
            choice.cost_name,
            choice.cost_why,
        )
        if choice.doubt and options.mode != "record":
            log.warning("adaspec: %s", choice.doubt)
        stranger = _stranger(choice.cost, target, here)
        if stranger and options.mode != "record" and not isinstance(policy, StaticPolicy):
            log.warning("adaspec: cost model %s was %s", choice.cost_name, stranger)
    return session


def serve_by(runner: Any, other: Policy, watch: bool = False, **changes: Any) -> Session:
    """Let another policy serve a runner's requests from here on, with a session of its own."""
    old: Session = runner.adaspec_session
    serving = dataclasses.replace(old.serving, **changes)
    vocabulary = target_of(runner.vllm_config.model_config).vocabulary
    session = Session(other, serving, vocabulary, watch)
    runner.adaspec_session = session
    return session


def _record_cap(options: Options, setup: Setup) -> int:
    """How far recorded requests are drafted for: in a live server, not to a splice's whole cap."""
    return setup.neural_cap if options.mode == "record" else min(setup.neural_cap, RECORD_CAP)


def _version(policy: Policy) -> str:
    """What tells one training of a policy from another."""
    if not isinstance(policy, LearnedPolicy) or policy.manifest is None:
        return ""
    return f"{policy.manifest.fingerprint} adaspec {policy.manifest.adaspec_version}"


def _hook(original: Any) -> Any:
    """`propose_draft_token_ids`, opened and closed by the session's step."""

    def propose_draft_token_ids(
        runner: Any, scheduler_output: Any, sampled_token_ids: Any, *args: Any, **kwargs: Any
    ) -> Any:
        session: Session = runner.adaspec_session
        try:
            rows = rows_of(runner, scheduler_output, sampled_token_ids)
        except Exception as error:
            session.skip(runner.input_batch.num_reqs, error)
        else:
            session.begin(rows, runner.requests)
        drafter = runner.drafter
        name = "session" if isinstance(drafter, NgramDrafter) else "adaspec"
        setattr(drafter, name, session)
        try:
            return original(scheduler_output, sampled_token_ids, *args, **kwargs)
        finally:
            setattr(drafter, name, None)

    return propose_draft_token_ids


def rows_of(runner: Any, scheduler_output: Any, sampled_token_ids: Any) -> EngineBatch:
    """The runner's batch, as the session wants it."""
    batch = runner.input_batch
    count = batch.num_reqs
    requests = list(batch.req_ids[:count])
    known = np.array(batch.num_tokens_no_spec[:count], np.int32)
    if isinstance(sampled_token_ids, list):
        sampled: Sequence[Sequence[int]] = sampled_token_ids
        # Bookkeeping is done: the batch's text already ends with what was sampled.
        known -= np.array([len(came) for came in sampled], np.int32)
    else:
        sampled = _on_host(runner, sampled_token_ids, count)
    states = [runner.requests[name] for name in requests]
    prompt_tokens = np.array(batch.num_prompt_tokens[:count], np.int32)
    said = known - prompt_tokens + np.array([len(came) for came in sampled], np.int32)
    return EngineBatch(
        requests=requests,
        states=states,
        tokens=batch.token_ids_cpu,
        prompt_tokens=prompt_tokens,
        known=known,
        sampled=sampled,
        verified=scheduler_output.scheduled_spec_decode_tokens,
        room=room_of(states, said),
    )


def room_of(states: Sequence[Any], said: Ints) -> Ints | None:
    """The most tokens that a draft for each request may hold; None where none limits that.

    Until a request has said `min_tokens`, vLLM lets it say no stop token. It judges the token
    behind a draft as though the draft were not there, so a draft must end before that length.
    """
    room = None
    for row, state in enumerate(states):
        params = state.sampling_params
        if params is None or not params.min_tokens or not params.all_stop_token_ids:
            continue
        if params.min_tokens > said[row]:
            if room is None:
                room = np.full(len(states), _NO_LIMIT, np.int32)
            room[row] = params.min_tokens - 1 - said[row]
    return room


_NO_LIMIT = 1 << 30


def _on_host(runner: Any, sampled: Any, count: int) -> list[list[int]]:
    """Valid sampled tokens per row, where drafting comes before bookkeeping."""
    host = sampled.cpu().numpy()
    vocabulary = runner.input_batch.vocab_size
    valid = (host >= 0) & (host < vocabulary)
    unfinished = runner.discard_request_mask.np[:count]
    return [[] if unfinished[row] else host[row, valid[row]].tolist() for row in range(count)]


def _stranger(cost: CostModel, target: Target, here: str) -> str:
    """A warning where the cost model was measured on another device or model than these."""
    said = []
    if cost.hardware is not None and not same_hardware(cost.hardware, here):
        said.append(f"measured on {cost.hardware}, this is {here}")
    if cost.target is not None and not target.is_called(cost.target):
        said.append(f"measured with {cost.target}, this is {target.name}")
    if not said:
        return ""
    return (
        f"{'; '.join(said)}: decisions weigh other step times than this server's; "
        "'adaspec profile' measures these"
    )
