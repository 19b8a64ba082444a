"""The options beside `"method": "adaspec"`, which are read strictly and passed to the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adaspec.documents import Rule, check_values, is_json, matching, number, or_null, whole
from adaspec.errors import ServingError, check_word, nearest, shown

MODES = ("serve", "record", "off")
"""serve: decide and propose. record: draft to the cap at every position, propose nothing. off: vLLM
without speculation."""

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
    "num_speculative_tokens_per_batch_size": "the policy says how long drafts are at each load",
    "parallel_drafting": "drafting may stop after any token, which parallel drafting cannot",
    "prompt_lookup_max": "the longest match counts, of up to 32 tokens",
    "prompt_lookup_min": 'write "policy": "fixed:ngram:K:MIN" instead',
    "rejection_sample_method": "only the standard method keeps outputs as they are",
    "use_heterogeneous_vocab": "n-gram and neural tokens must be of one vocabulary",
    "use_local_argmax_reduction": "confidences need the drafter's whole logits",
}
"""vLLM's keys that contradict what adaspec does, and why."""

MAX_VERIFIED = 128
"""The longest draft that vLLM's rejection sampler takes; a longer one ends the engine."""
LEAST_MEMORY = 1 << 16
"""The smallest memory of earlier answers, in bytes: it holds some 1,500 tokens."""
MOST_MEMORY = 1 << 32
"""The largest: some 98 million tokens."""


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
    mode_file: str | None = None
    """A file that says in which of `mode_file.WORDS` to serve, now and whenever it changes."""
    serve_fraction: float = 1.0
    """The fraction of requests drafted for."""
    guard: bool = True
    """Whether speculation is held off where it is measured to be slower than none."""
    max_drafted_tokens: int | None = None
    """The most drafted tokens of one step, those of all requests together."""
    cost: str | None = None
    trace_dir: str | None = None
    max_trace_bytes: int = 10 << 30
    record_fraction: float | None = None
    """The fraction of requests that are recorded; by default all in mode 'record', else none."""
    target: str | None = None
    """What traces call the model, in place of its folder or hub id."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """How outputs are sampled, for a trace's manifest only."""
    memory_bytes: int = 256 << 20
    """The most that the answers of earlier requests take, for policies that copy from these; 0: no
    answers are remembered."""
    memory_dir: str | None = None
    """The folder in which these are kept for a server that is started again."""
    passed: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 1
    """The number of replicas, a vLLM setting that its workers no longer know."""
    replica: int | None = None
    """An engine's index among them; None if it is the only one."""
    policy_why: str = ""
    """Why that policy serves."""
    policy_digest: str | None = None
    """A hash of the policy's folder, which must be the same for every worker."""
    vocabulary_hash: str | None = None
    """Identifies the server's vocabulary, so that workers need not read it; None if unreadable."""
    runner: str = "V1"
    """vLLM's model runner that the options are made for: V1 or V2."""
    why_v1: str = ""
    """Why it is V1, if it is."""
    cost_why: str = ""
    """Why those costs count until they are measured."""
    doubts: tuple[str, ...] = ()
    """What the log warns of as the server starts."""
    costs: Mapping[str, Any] | None = None
    """The fields of the cost model of that name. Not the model itself: a worker that read it would
    import numba, before vLLM's workers bear that."""
    measures: bool = False
    """Whether costs are measured as the server starts; those of that name count until then."""
    hardware: str | None = None
    """This machine's name. A worker on a CPU is bound to part of the machine, and would name only
    that part."""

    @property
    def is_guarded(self) -> bool:
        """Whether there is a guard: not where recorded requests slow down every step they are in,
        and would miss the steps in which nothing is drafted."""
        return self.guard and not self.densely_recorded and self.costs is not None

    @property
    def densely_recorded(self) -> float:
        """The fraction of requests that are recorded densely."""
        fraction = self.record_fraction
        return float(self.mode == "record") if fraction is None else fraction

    @property
    def writes(self) -> bool:
        """Whether a server writes anything that its stop could cost it."""
        return self.trace_dir is not None or self.memory_dir is not None


_LINE = matching(
    r"(?!\s*$)[^\x00-\x1f\x7f\ud800-\udfff]{1,4000}",
    "a text of one line, of at most 4,000 characters",
)
RULES = {
    **dict.fromkeys(
        (
            "model",
            "policy",
            "mode_file",
            "cost",
            "trace_dir",
            "target",
            "memory_dir",
        ),
        or_null(_LINE),
    ),
    "num_speculative_tokens": or_null(
        Rule(
            whole(1, MAX_VERIFIED).holds,
            f"a whole number from 1 to {MAX_VERIFIED} (no speculation at all is mode 'off')",
        )
    ),
    "max_trace_bytes": whole(1, 1 << 62),
    "memory_bytes": Rule(
        lambda value: value == 0 or whole(LEAST_MEMORY, MOST_MEMORY).holds(value),
        f"0, or a whole number from {LEAST_MEMORY:,} to {MOST_MEMORY:,}",
    ),
    "guard": Rule(lambda value: isinstance(value, bool), "true or false"),
    "serve_fraction": number(0, 1, "a number from 0 to 1"),
    "max_drafted_tokens": or_null(whole(1, 1 << 30)),
    "record_fraction": or_null(number(0, 1, "a number from 0 to 1")),
    "sampling": Rule(
        lambda value: isinstance(value, Mapping) and is_json(dict(value)),
        "an object that JSON can hold: it goes into a manifest",
    ),
}
"""The rules of what operators write; words of which one must be chosen are checked beside them."""

_KEYS = (*RULES, "mode", "draft_method")
_TAKES = f"keys of method 'adaspec': {', '.join(_KEYS)}; handed on to vLLM: {', '.join(PASSED)}"


def read_options(config: Mapping[str, Any]) -> Options:
    """Read the options in a speculative config; raises a `ServingError` if any is wrong."""
    values: dict[str, Any] = {}
    passed: dict[str, Any] = {}
    wrong: list[str] = []
    for original_key, value in config.items():
        key = original_key.replace("-", "_") if isinstance(original_key, str) else ""
        if key == "method":
            continue
        problem = _wrong_key(original_key, key)
        if problem or key in values or key in passed:
            wrong.append(problem or f"'{key}' stands there twice")
        (passed if key in PASSED else values)[key] = value
    if wrong:
        takes = "" if {*values, *passed} <= {*_KEYS, *PASSED, *REFUSED} else f" ({_TAKES})"
        raise ServingError(f"speculative config: {'; '.join(wrong)}{takes}")
    set_values = {key: value for key, value in values.items() if value is not None}
    options = Options(**set_values, passed=passed)
    _check(options)
    return options


def _wrong_key(original_key: object, key: str) -> str:
    """What is wrong with a key, and what to do; "" if nothing is."""
    if not isinstance(original_key, str):
        return f"{original_key!r:.60} is no key: keys are texts"
    if key in REFUSED:
        return f"'{key}' does not go with method 'adaspec': {REFUSED[key]} (leave it out)"
    if key in PASSED or key in _KEYS:
        return ""
    return f"unknown key {original_key!r:.60}{nearest(key.lower(), (*_KEYS, *PASSED))}"


def _check(options: Options) -> None:
    check_values(options, RULES, "speculative config", ServingError)
    check_word(options.mode, MODES, "speculative config: mode", ServingError)
    if options.draft_method is not None:
        method = options.draft_method
        check_word(method, DRAFT_METHODS, "speculative config: draft_method", ServingError)
    recording, no_trace = options.mode == "record", options.trace_dir is None
    fraction = options.record_fraction
    for name, is_missing, needed in (
        ("draft_method", options.model is None, "a model as well: the drafter it is of"),
        ("record_fraction", fraction and no_trace, "a trace_dir as well"),
        ("mode", recording and no_trace, "a trace_dir as well: where recordings go"),
        (
            "trace_dir",
            not recording and not fraction,
            "record_fraction as well: the share of requests that are recorded, such as 0.01",
        ),
        ("memory_dir", options.memory_bytes == 0, "memory_bytes of more than 0, or leave it out"),
        ("mode_file", recording, "it without mode 'record', which nothing switches"),
        ("record_fraction", recording and fraction == 0, "more than 0, or nothing is recorded"),
    ):
        value = getattr(options, name)
        if value is not None and is_missing:
            raise ServingError(f"speculative config: {name} is {shown(value)}: give {needed}")
