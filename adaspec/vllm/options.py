"""The options beside `"method": "adaspec"`, which are read strictly and passed to the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adaspec.documents import is_json
from adaspec.errors import ServingError, nearest

MODES = ("serve", "record", "shadow", "off")
"""serve: decide and propose. shadow: decide, propose nothing. record: draft to the cap at every
position, propose nothing. off: vLLM without speculation."""

DRAFT_METHODS = ("eagle", "eagle3", "mtp", "draft_model")
"""vLLM's names for the ways in which a neural drafter drafts."""

PASSED = (
    "attention_backend",
    "code_revision",
    "draft_load_config",
    "draft_tensor_parallel_size",
    "enforce_eager",
    "kv_cache_dtype",
    "max_model_len",
    "moe_backend",
    "quantization",
    "revision",
)
"""vLLM's keys about loading the drafter, which are handed on unchanged."""

REFUSED = {
    "disable_padded_drafter_batch": "adaspec sets it",
    "draft_sample_method": "drafts are greedy, or n-gram drafts would be judged by the head",
    "num_speculative_tokens_per_batch_size": 'write "policy": "batch-table:1-8=5,9-=2" instead',
    "parallel_drafting": "drafting may stop after any token, which parallel drafting cannot",
    "prompt_lookup_max": 'write "policy": "fixed:ngram-vllm:K:MIN:MAX" instead',
    "prompt_lookup_min": 'write "policy": "fixed:ngram-vllm:K:MIN:MAX" instead',
    "rejection_sample_method": "only the standard method keeps outputs as they are",
    "use_heterogeneous_vocab": "n-gram and neural tokens must be of one vocabulary",
    "use_local_argmax_reduction": "confidences need the drafter's whole logits",
}
"""vLLM's keys that contradict what adaspec does, and why."""

MAX_TEXT = 4000
MAX_VERIFIED = 128
"""The longest draft that vLLM's rejection sampler takes; a longer one ends the engine."""


@dataclass(frozen=True, slots=True)
class Options:
    """adaspec's part of the speculative config; None stands for what the operator left open."""

    model: str | None = None
    """The neural drafter, a folder or a hub id; None for n-gram drafts alone."""
    draft_method: str | None = None
    """One of `DRAFT_METHODS`, for a drafter whose config does not say which it is."""
    num_speculative_tokens: int | None = None
    """CAP, the maximum length of one draft."""
    policy: str | None = None
    mode: str = "serve"
    cost: str | None = None
    trace_dir: str | None = None
    max_trace_bytes: int = 10 << 30
    record_fraction: float | None = None
    """The fraction of requests recorded densely; by default all in mode 'record', else none."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """How outputs are sampled, for a trace's manifest only."""
    scramble_key: str | None = None
    """A file with the secret that permutes all token ids in traces; it is made if missing."""
    passed: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 1
    """The number of replicas, a vLLM setting that its workers no longer know."""
    policy_digest: str | None = None
    """A hash of the policy's folder, which must be the same for every worker."""
    vocabulary_hash: str | None = None
    """Identifies the server's vocabulary, so that workers need not read it; None if unreadable."""
    hardware: str | None = None
    """This machine's name. A worker on a CPU is bound to part of the machine, and would name only
    that part."""


_INTERNAL = ("passed", "replicas", "policy_digest", "vocabulary_hash", "hardware")
_KEYS = tuple(name for name in Options.__dataclass_fields__ if name not in _INTERNAL)


def read_options(config: Mapping[str, Any]) -> Options:
    """Read the options in a speculative config; raises a `ServingError` if any is wrong."""
    values: dict[str, Any] = {}
    passed: dict[str, Any] = {}
    for original_key, value in config.items():
        if not isinstance(original_key, str):
            raise ServingError(
                f"speculative config: {original_key!r:.60} is no key: keys are texts"
            )
        key = original_key.replace("-", "_")
        if key == "method":
            continue
        if key in values or key in passed:
            raise ServingError(f"speculative config: '{key}' stands there twice")
        if key in REFUSED:
            raise ServingError(
                f"speculative config: '{key}' does not go with method 'adaspec': {REFUSED[key]}; "
                "leave it out"
            )
        if key not in PASSED and key not in _KEYS:
            raise ServingError(
                f"speculative config: unknown key {original_key!r:.60} for method 'adaspec'"
                f"{nearest(key.lower(), (*_KEYS, *PASSED)) or '.'} Known: {', '.join(_KEYS)}; "
                f"handed on to vLLM: {', '.join(PASSED)}"
            )
        (passed if key in PASSED else values)[key] = value
    set_values = {key: value for key, value in values.items() if value is not None}
    options = Options(**set_values, passed=passed)
    _check(options)
    return options


def _check(options: Options) -> None:
    for name in ("model", "draft_method", "policy", "mode", "cost", "trace_dir", "scramble_key"):
        value = getattr(options, name)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise _wrong(name, value, "a text")
        if value is not None and not _is_line(value):
            raise _wrong(name, value, f"a text of one line, of at most {MAX_TEXT} characters")
    for name, words in (("mode", MODES), ("draft_method", DRAFT_METHODS)):
        value = getattr(options, name)
        if value is not None and value not in words:
            raise ServingError(
                f"speculative config: {name}={value!r:.60}{nearest(value.lower(), words) or '.'} "
                f"Known: {', '.join(words)}"
            )
    if options.draft_method is not None and options.model is None:
        raise _wrong("draft_method", options.draft_method, "a model as well: the drafter it is of")
    cap = options.num_speculative_tokens
    if cap is not None and not _is_whole(cap, 1, MAX_VERIFIED):
        raise _wrong(
            "num_speculative_tokens",
            cap,
            f"a whole number from 1 to {MAX_VERIFIED} (no speculation at all is mode 'off')",
        )
    if not _is_whole(options.max_trace_bytes, 1, 1 << 62):
        raise _wrong("max_trace_bytes", options.max_trace_bytes, "a number of bytes from 1 on")
    fraction = 0 if options.record_fraction is None else options.record_fraction
    if isinstance(fraction, bool) or not isinstance(fraction, int | float):
        raise _wrong("record_fraction", fraction, "a number from 0 to 1")
    if not 0 <= fraction <= 1:
        raise _wrong("record_fraction", fraction, "a number from 0 to 1")
    if not isinstance(options.sampling, Mapping):
        raise _wrong("sampling", options.sampling, "an object")
    if not is_json(dict(options.sampling)):
        raise _wrong("sampling", options.sampling, "what JSON can hold: it goes into a manifest")
    if options.mode == "record" and options.record_fraction == 0:
        raise _wrong("record_fraction", 0, "more than 0, or mode 'record' records nothing")
    if options.trace_dir is None:
        for name in ("record_fraction", "scramble_key"):
            if getattr(options, name):
                raise _wrong(name, getattr(options, name), "a trace_dir as well")
        if options.mode == "record":
            raise _wrong("mode", "record", "a trace_dir as well: the folder that recordings go to")


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_line(text: str) -> bool:
    """Whether a text can be quoted in a message and used as a file name."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return len(text) <= MAX_TEXT and not any(
        ord(character) < 32 or ord(character) == 127 for character in text
    )


def _wrong(name: str, value: object, expected: str) -> ServingError:
    return ServingError(f"speculative config: {name}={value!r:.60}: give {expected}")
