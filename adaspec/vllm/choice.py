"""Which policy, which cost model and how long a draft: chosen from what was asked, with reasons."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import load_cost
from adaspec.cost.model import CostModel
from adaspec.documents import parse_json
from adaspec.errors import AdaspecError, PolicyError, ServingError
from adaspec.policy.artifact import CHECKSUMS, FOREST, MANIFEST
from adaspec.policy.base import needs_of
from adaspec.policy.learned import LearnedPolicy, load_policy
from adaspec.policy.manifest import PolicyManifest
from adaspec.policy.own import own_policy
from adaspec.policy.protocol import Policy
from adaspec.policy.shipped import find_policy, shipped_policies
from adaspec.policy.spec import FIRST_WORDS, KINDS, check_legible, parse_policy
from adaspec.vllm.machine import hardware
from adaspec.vllm.options import MAX_VERIFIED, Options
from adaspec.vllm.profiles import find_profile

NEURAL_DEFAULT = KINDS["hybrid-splice"].default
NGRAM_DEFAULT = "hybrid:4:16:0"
RECORD_CAP = 8
OWN_CAP = 48
"""For a policy class of one's own, which does not say how far it drafts."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a policy or a head must fit: the model that is served."""

    name: str
    vocabulary: int
    width: int | None
    tokenizer: str
    other_name: str | None = None
    """What the model's own config says that it is called."""
    vocabulary_hash: str | None = None
    """What its token ids mean, as manifests say it; None where that is not known."""

    def is_called(self, name: str) -> bool:
        """Whether a hub id, or a folder named for one, means this model."""
        ours = {_short(each) for each in (self.name, self.other_name) if each}
        return _short(name) in ours


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


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy ready to start, and why it is this one."""

    policy: Policy
    spec: str
    """What makes the same policy again, in a worker."""
    why: str
    cap: int
    cost: CostModel
    cost_name: str
    cost_why: str
    digest: str | None = None
    """Of the policy's folder, if it came from one."""
    doubt: str = ""
    """What could not be checked of it, in one line."""


def choose(options: Options, target: Target, has_head: bool) -> Choice:
    """What serves these options; an `AdaspecError` where nothing sound does."""
    spec, why = options.policy, "asked for"
    if spec is None:
        spec, why = default_policy(target, has_head)
    policy = named_policy(spec)
    manifest = policy.manifest if isinstance(policy, LearnedPolicy) else None
    digest, doubt = None, ""
    if manifest is not None:
        doubt = check_made_for(spec, manifest, target)
        digest = _digest(spec)
    if options.policy_digest not in (None, digest):
        # Ranks that decide by different policies wait for each other for ever.
        raise ServingError(
            f"policy '{spec}' changed while the server was starting: start it again, now that its "
            "folder is as it should be"
        )
    if not has_head and needs_of(policy).drafter:
        raise ServingError(
            f"policy '{spec}' drafts with a neural drafter, and no \"model\" is given: name the "
            f"head, or choose an n-gram policy such as '{NGRAM_DEFAULT}'"
        )
    longest = RECORD_CAP if options.mode == "record" else needs_of(policy).draft_len or OWN_CAP
    cap = options.num_speculative_tokens or min(longest, MAX_VERIFIED)
    if isinstance(policy, LearnedPolicy) and cap > policy.cap:
        raise ServingError(
            f"num_speculative_tokens={cap} is beyond the cap of policy '{spec}': it asks for at "
            f"most {policy.cap}; give 1 to {policy.cap}, or leave it out"
        )
    return Choice(policy, spec, why, cap, *_cost(options, target, manifest), digest, doubt)


def named_policy(text: str) -> Policy:
    """The policy that a folder, a shipped name, a spec or `python:MODULE:NAME` means."""
    check_legible(text)
    if text.startswith("python:"):
        return own_policy(text)
    if text.partition(":")[0] in FIRST_WORDS:
        return parse_policy(text)
    if _is_policy_folder(text) or text in shipped_policies():
        return load_policy(text)
    if ":" in text and not text.startswith(("/", ".", "~")):
        return parse_policy(text)
    raise PolicyError(
        f"policy '{text}': neither a trained policy's folder nor a shipped policy nor a spec: "
        f"{_shipped()}; specs begin with {', '.join(sorted(FIRST_WORDS))}"
    )


def _digest(spec: str) -> str | None:
    """A hash of all files of a policy's folder, by way of their checksums; None if it is gone."""
    try:
        return hashlib.sha256((find_policy(spec) / CHECKSUMS).read_bytes()).hexdigest()
    except (OSError, AdaspecError):
        return None


def _shipped() -> str:
    return f"shipped are {', '.join(shipped_policies()) or 'none'}"


def _is_policy_folder(text: str) -> bool:
    try:
        return any((Path(text) / name).exists() for name in (CHECKSUMS, FOREST, MANIFEST))
    except (OSError, ValueError):
        return False


def default_policy(target: Target, has_head: bool) -> tuple[str, str]:
    """What serves a target where no policy was asked for, and why."""
    if not has_head:
        return NGRAM_DEFAULT, "the default without a neural drafter"
    for name in shipped_policies():
        made_for = _manifest_target(name)
        if made_for is not None and target.is_called(made_for):
            try:
                policy = load_policy(name)
                assert policy.manifest is not None
                check_made_for(name, policy.manifest, target)
            except AdaspecError:
                continue
            return name, f"shipped for {made_for}"
    return NEURAL_DEFAULT, f"the default: no shipped policy was made for {target.name}"


def _manifest_target(name: str) -> str | None:
    try:
        content = (find_policy(name) / MANIFEST).read_bytes()
        found = parse_json(content, name, AdaspecError).get("target")
    except (OSError, AttributeError, AdaspecError):
        return None
    return found if isinstance(found, str) else None


def check_made_for(spec: str, manifest: PolicyManifest, target: Target) -> str:
    """Refuse a policy whose token tables speak of another vocabulary's ids; what is in doubt.

    A name proves nothing either way: a folder may be called anything.
    """
    made_for = manifest.tokenizer or manifest.target
    theirs, ours = manifest.vocabulary_hash, target.vocabulary_hash
    if theirs is not None and ours is not None:
        if theirs == ours:
            return ""
        raise ServingError(
            f"policy '{spec}' was made for another vocabulary: {_told(theirs)} of tokenizer "
            f"'{made_for or 'unnamed'}', this server's has {_told(ours)} of '{target.tokenizer}': "
            "its tables would speak of other tokens; train one on traces of this target, or leave "
            '"policy" out'
        )
    if (
        made_for is None
        or target.is_called(made_for)
        or _short(made_for) == _short(target.tokenizer)
    ):
        return ""
    why = "the policy's manifest holds none" if theirs is None else "this server's is not known"
    return (
        f"policy '{spec}' was made for tokenizer '{made_for}', this server's is "
        f"'{target.tokenizer}', and their vocabularies could not be compared ({why}): if they "
        "differ, it foretells worse than it should"
    )


def _told(vocabulary: str) -> str:
    count, _, digest = vocabulary.partition("-")
    return f"{int(count):,} tokens (hash {digest})"


def _cost(
    options: Options, target: Target, manifest: PolicyManifest | None
) -> tuple[CostModel, str, str]:
    """Which cost model decisions weigh: as asked, this machine's own, the policy's, the default.

    With its name, by which a worker finds the same, and why it is this one.
    """
    profile = find_profile(target.name, options.model, options.hardware or hardware())
    # A worker is told by its path what the first process found.
    if profile is not None and options.cost in (None, str(profile)):
        return load_cost(profile), str(profile), "this machine's own profile"
    if manifest is not None and options.cost in (None, manifest.cost):
        carried = manifest.cost_model
        if carried is not None:
            return carried, manifest.cost, "the policy's"
    if options.cost is not None:
        return load_cost(options.cost), options.cost, "asked for"
    return load_cost(DEFAULT), DEFAULT, "the default"


def _short(name: str) -> str:
    """A hub id's last word, from the id, a folder named for it or the hub's own cache."""
    path = name.rstrip("/")
    cached = re.search(r"models--([^/]+)/snapshots/", path + "/")
    word = cached[1].replace("--", "/") if cached else path
    return word.rpartition("/")[2].lower()
