"""Chooses the policy, the cost model and the draft length for a server's options, with reasons."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from adaspec.cost.load import DEFAULT, cost_document, load_cost
from adaspec.cost.model import CostModel, check_bound
from adaspec.errors import AdaspecError, ServingError
from adaspec.policy.artifact import (
    CHECKSUMS,
    GENERAL,
    PolicyManifest,
    find_policy,
    shipped_policies,
)
from adaspec.policy.protocol import LearnedPolicy, ServedPolicy, Setup, load_policy
from adaspec.policy.static import FIRST_WORDS, StaticPolicy, StaticRule, check_legible, parse_policy
from adaspec.predict.model import LONGEST_NEURAL, LONGEST_NGRAM, LONGEST_SPLICE
from adaspec.vllm.options import DRAFT_METHODS, MAX_VERIFIED, Options
from adaspec.vllm.patching import METHOD, V2_VARIABLE

RECORD_CAP = 8
ON_ACCELERATORS = "vLLM has V2 on accelerators alone"
"""Why an engine on a CPU is served on V1."""


@dataclass(frozen=True, slots=True)
class Target:
    """The model that is served, which a policy or a head must fit."""

    name: str
    vocabulary: int
    width: int | None
    tokenizer: str
    other_name: str | None = None
    """The name in the model's own config."""
    vocabulary_hash: str | None = None
    """Identifies the meaning of the target's token ids, as in manifests; None if not known."""

    def is_called(self, name: str) -> bool:
        """Whether a name, a hub id or a folder named after one, refers to this model."""
        return _short(name) in {_short(alias) for alias in (self.name, self.other_name) if alias}


@dataclass(frozen=True, slots=True)
class Serving:
    """What is served and how; it never changes during a session."""

    policy: ServedPolicy
    options: Options
    """As they were chosen at the start: a `mode_file` may change the mode."""
    setup: Setup
    target: Target

    @property
    def name(self) -> str:
        """The policy's name for operators."""
        return self.options.policy or self.policy.name

    @property
    def record_cap(self) -> int:
        """How many tokens are drafted at each position of the recorded requests."""
        if not self.setup.neural_cap:
            return 0
        if self.options.mode == "record":
            assert self.options.num_speculative_tokens is not None
            return self.options.num_speculative_tokens
        return min(self.setup.neural_cap, RECORD_CAP)


def target_of(config: Any, vocabulary_hash: str | None = None) -> Target:
    """The target that a vLLM `ModelConfig` describes."""
    return Target(
        name=str(config.model),
        vocabulary=int(config.get_vocab_size()),
        width=int(config.get_hidden_size()),
        tokenizer=str(config.tokenizer),
        other_name=getattr(config.hf_config, "_name_or_path", None) or None,
        vocabulary_hash=vocabulary_hash,
    )


def choose(
    options: Options, target: Target, method: str | None, longest: int = LONGEST_NGRAM
) -> Options:
    """These options with policy, costs and draft length filled in, and the reasons.

    `method` is vLLM's for the head, None without one; a policy's drafts have at most so many tokens
    as are `longest`, unless the operator asks for more.

    Raises an `AdaspecError` with the reason if nothing fits.
    """
    recording = options.mode == "record"
    spec, why = options.policy, "asked for"
    if recording:  # requests that are recorded get the drafter anyway
        spec, why = "none", "nothing is proposed in mode 'record'"
    elif spec is None:
        spec, why = default_policy(target, method)
    policy = named_policy(spec)
    manifest = policy.manifest if isinstance(policy, LearnedPolicy) else None
    doubt = "" if manifest is None else check_made_for(spec, manifest, target)
    if method is None and policy.needs.drafter:
        raise ServingError(
            f"policy '{spec}' drafts with a neural drafter, and no \"model\" is given: name the "
            'head, or leave "policy" out'
        )
    default = RECORD_CAP if recording else policy.needs.draft_len or longest
    cap = options.num_speculative_tokens or min(default, MAX_VERIFIED)
    if isinstance(policy, LearnedPolicy) and cap > policy.cap:
        raise ServingError(
            f"num_speculative_tokens={cap} is beyond the cap of policy '{spec}': it asks for at "
            f"most {policy.cap}; give 1 to {policy.cap}, or leave it out"
        )
    if options.baseline is not None:
        _check_baseline(options.baseline, method, cap)
    cost, cost_name = _cost(options, manifest)
    weighs_costs = not isinstance(policy, StaticPolicy)
    doubts = [doubt]
    if options.max_step_ms is not None:
        if not weighs_costs:
            raise ServingError(
                f"max_step_ms does not go with policy '{spec}', which knows no times: leave it out"
            )
        if options.cost is not None:
            check_bound(options.max_step_ms, cost)
    if weighs_costs and cap < default:
        doubts.append(
            f"num_speculative_tokens={cap} limits copies as well, of which the policy drafts up to "
            f"{default} tokens: leave it out, unless you mean that"
        )
    return structs.replace(
        options,
        policy=spec,
        policy_why=why,
        policy_digest=None if manifest is None else digest_of(spec),
        num_speculative_tokens=cap,
        cost=cost_name,
        costs=cost_document(cost),
        measures=weighs_costs and options.cost is None,
        doubts=tuple(filter(None, doubts)),
    )


def runner_of(on_cpu: bool, why_v1: str = "") -> tuple[str, str]:
    """V1 or V2, and the reason if it is V1; raises a `ServingError` where V2 is forced in vain."""
    wanted = os.environ.get(V2_VARIABLE, "").strip()
    if wanted and not wanted.isdecimal():
        raise ServingError(f"{V2_VARIABLE}={wanted}: vLLM reads a number there: set it to 0 or 1")
    if not wanted:
        why_v1 = why_v1 or (ON_ACCELERATORS if on_cpu else "")
    elif int(wanted) == 0:
        why_v1 = f"{V2_VARIABLE}={wanted}"
    elif why_v1:
        raise ServingError(
            f"method '{METHOD}' does not go with {V2_VARIABLE}={wanted} here: {why_v1}: unset it"
        )
    return ("V1" if why_v1 else "V2"), why_v1


def named_policy(text: str) -> ServedPolicy:
    """Make the policy that a folder, a shipped name or the spec of a static rule refers to."""
    check_legible(text)
    is_path = text.startswith(("/", ".", "~")) or Path(text).is_dir()
    if text.partition(":")[0] not in FIRST_WORDS and (":" not in text or is_path):
        return load_policy(text)
    policy = None if text.startswith("python:") else parse_policy(text)
    if not isinstance(policy, StaticPolicy):
        raise ServingError(
            f"policy '{text}' is for replays alone (adaspec eval): a server takes a trained "
            "policy's folder, a shipped name or a static rule such as hybrid:4:16:3"
        )
    rule = policy.rule
    for kind, asked, most in (
        ("neural", rule.neural_len, LONGEST_NEURAL),
        ("copied", rule.ngram_len, LONGEST_NGRAM),
        ("spliced", rule.splice_len, LONGEST_SPLICE),
    ):
        if asked > most:
            raise ServingError(
                f"policy '{policy.name}' drafts {asked} {kind} tokens, more than a server does: "
                f"give a rule of at most {most}"
            )
    return policy


def baseline_of(text: str) -> StaticPolicy:
    """The static rule that an operator calls the baseline: a spec, or `METHOD:K` as in vLLM."""
    method, _, rest = text.partition(":")
    kind = "neural" if method in DRAFT_METHODS else method if method == "ngram" else None
    try:
        policy = named_policy(text if kind is None else f"fixed:{kind}:{rest}")
    except AdaspecError as error:
        raise ServingError(
            f"baseline '{text}' is no static rule: write eagle:3 or ngram:5 for what vLLM's method "
            f"does with so many tokens, or a spec such as hybrid:4:16:3 ({error})"
        ) from None
    if not isinstance(policy, StaticPolicy) or policy.rule == StaticRule():
        raise ServingError(
            f"baseline '{text}' is no static rule that drafts: write eagle:3, ngram:5 or a spec "
            "such as hybrid:4:16:3; with no speculation at all, the guard compares anyway"
        )
    return policy


def _check_baseline(text: str, method: str | None, cap: int) -> None:
    """Refuse a baseline that an engine of this head, if any, and this length cannot run."""
    needs = baseline_of(text).needs
    if needs.drafter and method is None:
        raise ServingError(
            f"baseline '{text}' drafts with a neural drafter, and no \"model\" is given: name the "
            'head, or leave "baseline" out'
        )
    name = text.partition(":")[0]
    if name in DRAFT_METHODS and name != method:
        raise ServingError(
            f"baseline '{text}' is of method {name}, and the head drafts as {method}: write "
            f"{method}{text[len(name) :]}"
        )
    if needs.draft_len is not None and needs.draft_len > cap:
        raise ServingError(
            f"baseline '{text}' drafts up to {needs.draft_len} tokens, and this engine at most "
            f"{cap}: give a shorter one, or num_speculative_tokens={needs.draft_len} where the "
            "policy goes with that"
        )


def digest_of(spec: str) -> str | None:
    """A hash of the checksums of all files in a policy's folder; None if the folder is gone."""
    try:
        return hashlib.sha256((find_policy(spec) / CHECKSUMS).read_bytes()).hexdigest()
    except (OSError, AdaspecError):
        return None


def default_policy(target: Target, method: str | None) -> tuple[str, str]:
    """The policy for a target and a head if the user named none, and the reason for it."""
    why = f"none was made for {target.name}"
    for name in shipped_policies():
        with suppress(AdaspecError):
            manifest = load_policy(name).manifest
            if manifest is None or not manifest.target or not target.is_called(manifest.target):
                continue
            check_made_for(name, manifest, target)
            if _drafts_alike(manifest.drafter, method):
                return name, f"shipped for {manifest.target}"
            why = f"'{name}' was made with {manifest.drafter}"
    return GENERAL, f"for any model: {why}"


def _drafts_alike(drafter: str | None, method: str | None) -> bool:
    """Whether a recorded drafter may be of this method; only those named by a method are told."""
    kinds = {each.replace("_", ""): each for each in DRAFT_METHODS}
    kind = kinds.get(re.sub("[-_]", "", _short(drafter or "")))
    return method is None or kind is None or kind == method


def check_made_for(spec: str, manifest: PolicyManifest, target: Target) -> str:
    """Refuse a policy whose token tables are for another vocabulary; returns any doubt.

    A policy is refused only if the hashes or sizes differ, because a folder may have any name.
    """
    made_for = manifest.tokenizer or manifest.target
    trained, served = manifest.vocabulary_hash, target.vocabulary_hash
    if trained is not None and served is not None:
        if trained == served:
            return ""
        sizes = [int(each.partition("-")[0]) for each in (trained, served)]
        if sizes[0] != sizes[1] or "-" in trained:
            raise ServingError(
                f"policy '{spec}' was made for another vocabulary: {sizes[0]:,} tokens of "
                f"tokenizer '{made_for or 'unnamed'}' ({trained}), this server's has "
                f"{sizes[1]:,} tokens of '{target.tokenizer}' ({served}): train one on traces of "
                'this target, or leave "policy" out'
            )
    if made_for is None or target.is_called(made_for):
        return ""
    if _short(made_for) == _short(target.tokenizer):
        return ""
    return (
        f"policy '{spec}' was made for tokenizer '{made_for}', this server's is "
        f"'{target.tokenizer}', and nobody knows whether both have one vocabulary: if not, it "
        "foretells worse than it should"
    )


def _cost(options: Options, manifest: PolicyManifest | None) -> tuple[CostModel, str]:
    """The cost model and its name: the one asked for, the policy's or the default."""
    if options.cost is None and manifest is not None and manifest.cost_model is not None:
        return manifest.cost_model, manifest.cost
    name = options.cost or DEFAULT
    return load_cost(name), name


def _short(name: str) -> str:
    """The last part of a hub id, given the id, a folder named after it or the hub's cache."""
    path = name.rstrip("/")
    cached = re.search(r"models--([^/]+)/snapshots/", path + "/")
    word = cached[1].replace("--", "/") if cached else path
    return word.rpartition("/")[2].lower()
