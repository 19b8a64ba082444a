"""What an operator writes beside `"method": "adaspec"`: read strictly, carried to the workers."""

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
"""How a neural drafter drafts, in vLLM's own words."""

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
"""Keys of vLLM's own that say how the drafter is loaded: handed on as they are."""

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
"""Keys of vLLM's own that contradict what adaspec does, and why."""

MAX_TEXT = 4000
MAX_VERIFIED = 128
"""The longest draft that vLLM's rejection sampler takes: one token more, and the engine ends."""


@dataclass(frozen=True, slots=True)
class Options:
    """Our part of the speculative config; None is what the operator left to us."""

    model: str | None = None
    """The neural drafter: folder or hub id; None is n-gram alone."""
    draft_method: str | None = None
    """Of `DRAFT_METHODS`, for a drafter that does not say itself what it is."""
    num_speculative_tokens: int | None = None
    """CAP: the most tokens that one draft may hold."""
    policy: str | None = None
    mode: str = "serve"
    cost: str | None = None
    trace_dir: str | None = None
    max_trace_bytes: int = 10 << 30
    record_fraction: float | None = None
    """Of the requests, how many are recorded densely: all in mode 'record', else none."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """What a trace's manifest says of how outputs were sampled; it changes nothing here."""
    scramble_key: str | None = None
    """A file, made where it is missing, whose secret permutes all token ids in traces."""
    passed: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 1
    """How many engines serve the same: vLLM's own setting, which its workers no longer know."""
    policy_digest: str | None = None
    """Of the policy's folder, as the server found it: every worker must find the same."""
    vocabulary_hash: str | None = None
    """Of the server's tokenizer, where it could be read: workers need not read it again."""
    hardware: str | None = None
    """This machine, as the server calls it: on a CPU a worker is bound to a part of it."""


_NO_KEYS = ("passed", "replicas", "policy_digest", "vocabulary_hash", "hardware")
_OWN = tuple(name for name in Options.__dataclass_fields__ if name not in _NO_KEYS)


def read_options(config: Mapping[str, Any]) -> Options:
    """The options in a speculative config; a `ServingError` names what is wrong with it."""
    found: dict[str, Any] = {}
    passed: dict[str, Any] = {}
    for written, value in config.items():
        if not isinstance(written, str):
            raise ServingError(f"speculative config: {written!r:.60} is no key: keys are texts")
        key = written.replace("-", "_")
        if key == "method":
            continue
        if key in found or key in passed:
            raise ServingError(f"speculative config: '{key}' stands there twice")
        if key in REFUSED:
            raise ServingError(
                f"speculative config: '{key}' does not go with method 'adaspec': {REFUSED[key]}; "
                "leave it out"
            )
        if key in PASSED:
            passed[key] = value
        elif key in _OWN:
            found[key] = value
        else:
            raise ServingError(
                f"speculative config: unknown key {written!r:.60} for method 'adaspec'"
                f"{nearest(key.lower(), (*_OWN, *PASSED)) or '.'} Known: {', '.join(_OWN)}; "
                f"handed on to vLLM: {', '.join(PASSED)}"
            )
    options = Options(**{key: value for key, value in found.items() if value is not None})
    _check(options)
    return Options(**{**{name: getattr(options, name) for name in _OWN}, "passed": passed})


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
    """Whether a message can quote a text, and the system can be asked for a file of that name."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return len(text) <= MAX_TEXT and not any(ord(each) < 32 or ord(each) == 127 for each in text)


def _wrong(name: str, value: object, expected: str) -> ServingError:
    return ServingError(f"speculative config: {name}={value!r:.60}: give {expected}")
