"""Puts a session into a vLLM model runner when the runner is created."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adaspec.cost.model import CostModel
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Ints, Policy, Setup
from adaspec.policy.static import StaticPolicy
from adaspec.vllm.batch import EngineBatch
from adaspec.vllm.choice import RECORD_CAP, Target, choose, target_of
from adaspec.vllm.compatibility import check_runner, installed_version
from adaspec.vllm.events import Serving
from adaspec.vllm.machine import hardware, same_hardware
from adaspec.vllm.options import Options
from adaspec.vllm.proposers import HeadMixin, NgramDrafter
from adaspec.vllm.session import RecordPolicy, Session, warm_up
from adaspec.vllm.tracing import observers_of
from adaspec.vllm.workarounds import draft_to_the_end, fix_expansion, fix_undrafted_steps

log = logging.getLogger("vllm.adaspec")

_NO_LIMIT = 1 << 30


def attach(runner: Any, options: Options) -> None:
    """Make the runner's drafter follow the policy that the options name."""
    drafter = getattr(runner, "drafter", None)
    if drafter is None:
        return
    is_neural = not isinstance(drafter, NgramDrafter)
    check_runner(runner, drafter if is_neural else None)
    fix_expansion()
    fix_undrafted_steps()
    runner.adaspec_session = session_of(runner, options)
    limit = draft_to_the_end(runner)
    if is_neural:
        base = type(drafter)
        drafter.__class__ = type(f"AdaSpec{base.__name__}", (HeadMixin, base), {})
        drafter.adaspec_limit = limit
    runner.propose_draft_token_ids = _with_session(runner, runner.propose_draft_token_ids)


def session_of(runner: Any, options: Options) -> Session:
    """The session that serves a runner's requests."""
    config = runner.vllm_config
    parallel = config.parallel_config
    recording, has_head = options.mode == "record", options.model is not None
    target = target_of(config.model_config, options.vocabulary_hash)
    choice = choose(options, target, has_head)
    policy: Policy = RecordPolicy() if recording else choice.policy
    setup = Setup(
        cost=choice.cost,
        cap=choice.cap,
        neural_cap=choice.cap if has_head else 0,
        # Preempted requests keep their slots while there are enough, hence twice as many.
        slots=2 * runner.scheduler_config.max_num_seqs,
        shows_tokens=has_head,
        shows_confidences=has_head,
    )
    fraction = options.record_fraction
    serving = Serving(
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
        # A user's policy class may decide at random; every other policy is deterministic.
        propensity=None if choice.spec.startswith("python:") else 1.0,
        tokenizer=target.tokenizer,
        vocabulary_hash=target.vocabulary_hash,
        vocabulary=target.vocabulary,
        engine_version=installed_version(),
        hardware=options.hardware or hardware(),
        replica=replica_of(parallel, options.replicas),
    )
    warm_up(Session(policy, serving, stop_if_slow=False))
    session = Session(policy, serving, stop_if_slow=parallel.tensor_parallel_size == 1)
    if parallel.rank == 0:
        session.observers.add(*observers_of(options, serving))
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
        if choice.doubt and not recording:
            log.warning("adaspec: %s", choice.doubt)
        mismatch = _cost_mismatch(choice.cost, target, options.hardware or hardware())
        if mismatch and not recording and not isinstance(policy, StaticPolicy):
            log.warning("adaspec: cost model %s was %s", choice.cost_name, mismatch)
    return session


def serve_by(runner: Any, policy: Policy, stop_if_slow: bool = False, /, **changes: Any) -> Session:
    """Start a new session in which another policy serves the runner's requests from now on."""
    serving = dataclasses.replace(runner.adaspec_session.serving, **changes)
    runner.adaspec_session = Session(policy, serving, stop_if_slow)
    return runner.adaspec_session


def replica_of(parallel: Any, replicas: int) -> int | None:
    """The index of this engine among the replicas; None if it is the only one.

    The engines of a dense model do not know of each other: vLLM tells each of them that it is
    alone, and leaves only an index behind.
    """
    if replicas == 1:
        return None
    return int(getattr(parallel, "data_parallel_index", parallel.data_parallel_rank))


def _version(policy: Policy) -> str:
    """An identifier that tells one training of a policy from another."""
    if not isinstance(policy, LearnedPolicy) or policy.manifest is None:
        return ""
    return f"{policy.manifest.fingerprint} adaspec {policy.manifest.adaspec_version}"


def _with_session(runner: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `propose_draft_token_ids` in a step of the runner's session."""

    def propose_draft_token_ids(
        scheduler_output: Any, sampled_token_ids: Any, *args: Any, **kwargs: Any
    ) -> Any:
        session: Session = runner.adaspec_session
        try:
            batch = batch_of(runner, scheduler_output, sampled_token_ids)
        except Exception as error:
            session.skip(runner.input_batch.num_reqs, error)
        else:
            session.begin(batch, runner.requests)
        runner.drafter.adaspec = session
        try:
            return original(scheduler_output, sampled_token_ids, *args, **kwargs)
        finally:
            runner.drafter.adaspec = None

    return propose_draft_token_ids


def batch_of(runner: Any, scheduler_output: Any, sampled_token_ids: Any) -> EngineBatch:
    """The runner's batch in the form that the session needs."""
    batch = runner.input_batch
    count = batch.num_reqs
    requests = list(batch.req_ids[:count])
    known = np.array(batch.num_tokens_no_spec[:count], np.int32)
    if isinstance(sampled_token_ids, list):
        sampled: Sequence[Sequence[int]] = sampled_token_ids
        # vLLM has done its bookkeeping, so the batch's text already ends with the sampled tokens.
        known -= np.array([len(tokens) for tokens in sampled], np.int32)
    else:
        sampled = _on_host(runner, sampled_token_ids, count)
    states = [runner.requests[name] for name in requests]
    prompt_tokens = np.array(batch.num_prompt_tokens[:count], np.int32)
    output_tokens = known - prompt_tokens + np.array([len(tokens) for tokens in sampled], np.int32)
    return EngineBatch(
        requests=requests,
        states=states,
        tokens=batch.token_ids_cpu,
        prompt_tokens=prompt_tokens,
        known=known,
        sampled=sampled,
        verified=scheduler_output.scheduled_spec_decode_tokens,
        room=room_of(states, output_tokens),
    )


def room_of(states: Sequence[Any], output_tokens: Ints) -> Ints | None:
    """The maximum draft length for each request; None if no request limits it.

    vLLM forbids stop tokens until a request has `min_tokens` output tokens. It judges the token
    after a draft as though the draft were not there, so a draft must end before that length.
    """
    room = None
    for row, state in enumerate(states):
        params = state.sampling_params
        if params is None or not params.min_tokens or not params.all_stop_token_ids:
            continue
        if params.min_tokens > output_tokens[row]:
            if room is None:
                room = np.full(len(states), _NO_LIMIT, np.int32)
            room[row] = params.min_tokens - 1 - output_tokens[row]
    return room


def _on_host(runner: Any, sampled: Any, count: int) -> list[list[int]]:
    """The valid sampled tokens per row, for drafters that run before vLLM's bookkeeping."""
    host = sampled.cpu().numpy()
    vocabulary = runner.input_batch.vocab_size
    valid = (host >= 0) & (host < vocabulary)
    unfinished = runner.discard_request_mask.np[:count]
    return [[] if unfinished[row] else host[row, valid[row]].tolist() for row in range(count)]


def _cost_mismatch(cost: CostModel, target: Target, device: str) -> str:
    """A warning if the cost model was measured on another device or with another model."""
    measured = []
    if cost.hardware is not None and not same_hardware(cost.hardware, device):
        measured.append(f"on {cost.hardware}, this is {device}")
    if cost.target is not None and not target.is_called(cost.target):
        measured.append(f"with {cost.target}, this is {target.name}")
    advice = "decisions weigh other step times than this server's; 'adaspec profile' measures these"
    return f"measured {' and '.join(measured)}: {advice}" if measured else ""
