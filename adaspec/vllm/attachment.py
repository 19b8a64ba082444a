"""Puts a session into a vLLM model runner when the runner is created."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from adaspec.policy.protocol import Ints, Policy
from adaspec.vllm.batch import EngineBatch
from adaspec.vllm.compatibility import check_runner
from adaspec.vllm.following import follow
from adaspec.vllm.options import MAX_VERIFIED, Options
from adaspec.vllm.patching import SALT_ATTRIBUTE
from adaspec.vllm.proposers import HeadMixin, NgramDrafter
from adaspec.vllm.serving import announce, recording_policy, serving_of
from adaspec.vllm.session import Session
from adaspec.vllm.tracing import observers_of
from adaspec.vllm.warm_up import warm_up
from adaspec.vllm.workarounds import draft_to_the_end, fix_expansion, fix_undrafted_steps

NO_SALT_KNOWN = object()
"""Stands for the salt of a request whose scheduler does not tell it: its answer is not shared."""


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
    runner.execute_model = _with_idle_steps(runner, runner.execute_model)


def session_of(runner: Any, options: Options) -> Session:
    """The session that serves a runner's requests."""
    choice, serving = serving_of(runner.vllm_config, options)
    # Preempted requests keep their slots while there are enough, hence twice as many.
    slots = 2 * runner.scheduler_config.max_num_seqs
    serving = dataclasses.replace(serving, setup=dataclasses.replace(serving.setup, slots=slots))
    policy: Policy = recording_policy() if options.mode == "record" else choice.policy
    mode = "serve" if serving.mode == "off" else serving.mode
    serves = dataclasses.replace(serving, mode=mode, memory_file=None)
    warm_up(Session(policy, serves, stop_if_slow=False))
    parallel = runner.vllm_config.parallel_config
    session = Session(policy, serving, stop_if_slow=parallel.tensor_parallel_size == 1)
    if parallel.rank == 0:
        session.observers.add(*observers_of(options, serving))
        announce(runner.vllm_config, choice, serving, options)
    return session


def serve_by(runner: Any, policy: Policy, stop_if_slow: bool = False, /, **changes: Any) -> Session:
    """Start a new session in which another policy serves the runner's requests from now on."""
    serving = dataclasses.replace(runner.adaspec_session.serving, **changes)
    runner.adaspec_session = Session(policy, serving, stop_if_slow)
    return runner.adaspec_session


def _with_session(runner: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `propose_draft_token_ids` in a step of the runner's session."""

    def propose_draft_token_ids(
        scheduler_output: Any, sampled_token_ids: Any, *args: Any, **kwargs: Any
    ) -> Any:
        session: Session = runner.adaspec_session
        follow(session, scheduler_output)
        try:
            owners = None
            if session.answers is not None:
                owners = note_owners(runner, scheduler_output)
            batch = batch_of(runner, scheduler_output, sampled_token_ids, owners)
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


def _with_idle_steps(runner: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `execute_model`, which tells the runner of the last requests to end in an empty step."""

    def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(scheduler_output, *args, **kwargs)
        if not scheduler_output.total_num_scheduled_tokens:
            runner.adaspec_session.idle(runner.requests)
        return result

    return execute_model


def note_owners(runner: Any, scheduler_output: Any) -> dict[str, object]:
    """By request, what must be the same for it to know another's answer."""
    owners: dict[str, object] = vars(runner).setdefault("adaspec_owners", {})
    for new in scheduler_output.scheduled_new_reqs:
        key = owner_key(new)
        if key is not None:
            owners[new.req_id] = key
    for name in scheduler_output.finished_req_ids:
        owners.pop(name, None)
    return owners


def owner_key(new: Any) -> object:
    """What must be the same for a new request to know another's answer; None: it knows nobody's.

    That is a hash of its LoRA adapter and the `cache_salt` by which vLLM keeps prefix caches apart.
    """
    salt, adapter = getattr(new, SALT_ATTRIBUTE, NO_SALT_KNOWN), new.lora_request
    if salt is NO_SALT_KNOWN:
        return None
    both = json.dumps([salt, None if adapter is None else adapter.lora_name])
    return hashlib.blake2b(both.encode(), digest_size=16).hexdigest()


def batch_of(
    runner: Any,
    scheduler_output: Any,
    sampled_token_ids: Any,
    owners: Mapping[str, object] | None = None,
) -> EngineBatch:
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
        owners=() if owners is None else [owners.get(name) for name in requests],
    )


def room_of(states: Sequence[Any], output_tokens: Ints) -> Ints | None:
    """The maximum draft length for each request; None if no request limits it.

    Tokens behind `max_tokens` would be verified in vain. vLLM forbids stop tokens until a request
    has `min_tokens` output tokens. It judges the token after a draft as though the draft were not
    there, so a draft must end before that length.
    """
    room = [MAX_VERIFIED] * len(states)
    for row, (state, output) in enumerate(zip(states, output_tokens.tolist(), strict=True)):
        params = state.sampling_params
        if params is None:
            continue
        if params.max_tokens is not None:
            room[row] = min(room[row], params.max_tokens - 1 - output)
        if params.min_tokens > output and params.all_stop_token_ids:
            room[row] = min(room[row], params.min_tokens - 1 - output)
    return np.array(room, np.int32) if min(room, default=MAX_VERIFIED) < MAX_VERIFIED else None


def _on_host(runner: Any, sampled: Any, count: int) -> list[list[int]]:
    """The valid sampled tokens per row, for drafters that run before vLLM's bookkeeping."""
    host = sampled.cpu().numpy()
    vocabulary = runner.input_batch.vocab_size
    valid = (host >= 0) & (host < vocabulary)
    unfinished = runner.discard_request_mask.np[:count]
    return [[] if unfinished[row] else host[row, valid[row]].tolist() for row in range(count)]
