"""The options beside `"method": "adaspec"`, which are read strictly and passed to the workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, structs

from adaspec.errors import ServingError, shown
from adaspec.records import Text, convert

Mode = Literal["serve", "record", "off"]
"""serve: decide and propose. record: draft to the cap at every position, propose nothing. off: vLLM
without speculation."""
MODES = get_args(Mode)

DraftMethod = Literal["eagle", "eagle3", "mtp", "draft_model", "dflash", "dspark"]
"""vLLM's names for the ways in which a neural drafter drafts."""
DRAFT_METHODS = get_args(DraftMethod)
IN_ONE_PASS = ("dflash", "dspark")
"""Those whose heads draft all their tokens in one pass."""

LEAST_RING, MOST_RING = 1 << 10, 1 << 20
"""The smallest ring of ended answers, and the largest: a GPU reads all of it for every row."""
MAX_VERIFIED = 128
"""The longest draft that vLLM's rejection sampler takes; a longer one ends the engine."""
Share = Annotated[float, Meta(ge=0, le=1, description="a number from 0 to 1")]


class Passed(Struct, frozen=True, kw_only=True):
    """vLLM's keys about loading the drafter, which are handed on unchanged."""

    attention_backend: Any = None
    code_revision: Any = None
    draft_load_config: Any = None
    draft_tensor_parallel_size: Any = None
    enforce_eager: Any = None
    kv_cache_dtype: Any = None
    max_model_len: Any = None
    moe_backend: Any = None
    quantization: Any = None
    revision: Any = None


class Asked(Passed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What operators write; None stands for what they left open."""

    model: Text | None = None
    """The neural drafter, a folder or a hub id; None for n-gram drafts alone."""
    draft_method: DraftMethod | None = None
    """One of `DRAFT_METHODS`, for a drafter whose config does not say which it is."""
    num_speculative_tokens: Annotated[int, Meta(ge=1, le=MAX_VERIFIED)] | None = None
    """CAP, the maximum length of one draft; no speculation at all is mode 'off'."""
    policy: Text | None = None
    mode: Mode = "serve"
    mode_file: Text | None = None
    """A file that says in which of `scheduler.WORDS` to serve, now and whenever it changes."""
    serve_fraction: Share = 1.0
    """The fraction of requests drafted for."""
    guard: bool = True
    """Whether what serves is what is measured to be fastest: the policy, the baseline or none."""
    baseline: Text | None = None
    """What the operator would serve otherwise, a static rule: the guard compares with it."""
    cost: Text | None = None
    max_step_ms: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    """No step is planned that takes longer by the costs, prompts included."""
    trace_dir: Text | None = None
    max_trace_bytes: Annotated[int, Meta(ge=1, le=1 << 62)] = 10 << 30
    record_fraction: Share | None = None
    """The fraction of requests that are recorded; by default all in mode 'record', else none."""
    ring_tokens: Annotated[int, Meta(ge=0, le=MOST_RING)] = 0
    """How many of the last tokens of ended answers requests copy from; 0: from their own text
    alone. Not unless the operator says so: how fast an answer comes then tells of others."""
    ring_file: Text | None = None
    """A file that keeps these tokens for a server that is started again."""


class Options(Asked, frozen=True, kw_only=True):
    """adaspec's part of the speculative config."""

    replica: int | None = None
    """An engine's index among the server's replicas, 0 until it starts; None if it is alone."""
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
    def passed(self) -> dict[str, Any]:
        """The keys that are handed on to vLLM."""
        given = {name: getattr(self, name) for name in Passed.__struct_fields__}
        return {name: value for name, value in given.items() if value is not None}

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
        return self.trace_dir is not None or self.ring_file is not None


def read_options(config: Mapping[str, Any]) -> Options:
    """Read the options in a speculative config; raises a `ServingError` if any is wrong."""
    given = {
        str(key).replace("-", "_"): value
        for key, value in config.items()
        if key != "method" and value is not None
    }
    options = Options(**structs.asdict(convert(given, Asked, "speculative config", ServingError)))
    _check(options)
    return options


def _check(options: Options) -> None:
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
        ("ring_tokens", 0 < options.ring_tokens < LEAST_RING, f"0, or {LEAST_RING:,} or more"),
        ("ring_file", options.ring_tokens == 0, "ring_tokens as well, such as 65536"),
        ("mode_file", recording, "it without mode 'record', which nothing switches"),
        ("baseline", not options.guard, "guard true, which compares with it"),
        (
            "baseline",
            options.densely_recorded > 0,
            "it where nothing is recorded: no guard is then",
        ),
        ("record_fraction", recording and fraction == 0, "more than 0, or nothing is recorded"),
    ):
        value = getattr(options, name)
        if value is not None and is_missing:
            raise ServingError(f"speculative config: {name} is {shown(value)}: give {needed}")
