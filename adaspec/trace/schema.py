"""What a trace holds: requests with their arrays, a manifest, and the rules that each row obeys.

The rules are checked both on writing and on reading.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct, structs
from numpy.typing import NDArray

from adaspec.errors import TraceError, check_word, shown
from adaspec.records import check, convert, fits, upgraded
from adaspec.version import __version__

CONFIDENCES = ("logprob", "margin", "entropy")
"""Order of the last axis of `Request.confidences`: top-1 log-probability, top-2 margin, entropy."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace; arrays are indexed by position, and entry 0 is -1 or NaN.

    Neural columns are None if no neural drafter ran.
    """

    workload: str
    id: str
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    neural_accepted: NDArray[np.int16] | None = None
    drafted_tokens: NDArray[np.int32] | None = None
    """Tokens that the neural drafter proposed, as (positions, draft cap), padded with -1."""
    confidences: NDArray[np.float32] | None = None
    """Confidences, as (positions, draft cap, len(CONFIDENCES)), NaN where unknown."""
    ngram_accepted: NDArray[np.int16] | None = None
    """Accepted counts of the recording engine's own look-up, even beyond the output's end."""
    max_tokens: int | None = None
    """The most output tokens that the request was allowed; None if that is not known."""

    @property
    def paired(self) -> bool:
        """True if neural counts and output tokens are of equal length, so from the same run."""
        counts = self.neural_accepted
        return counts is not None and len(counts) == len(self.output_tokens)

    @property
    def is_cut_off(self) -> bool:
        """True if its limit ended the output: the model might have gone on."""
        return self.max_tokens is not None and len(self.output_tokens) >= self.max_tokens

    @property
    def nbytes(self) -> int:
        """Size of its arrays in memory."""
        return sum(array.nbytes for name in ARRAYS if (array := getattr(self, name)) is not None)


ARRAYS: dict[str, type[np.number[Any]]] = {
    "prompt_tokens": np.int32,
    "output_tokens": np.int32,
    "neural_accepted": np.int16,
    "drafted_tokens": np.int32,
    "ngram_accepted": np.int16,
    "confidences": np.float32,
}
"""The arrays of a request and their numbers."""


def as_array(values: Any, kind: type[np.number[Any]], what: str) -> NDArray[Any]:
    """Numbers, such as a list of them, as an array of a kind.

    A first entry that is null becomes -1, and a null among floats NaN.
    """
    if isinstance(values, list) and values[:1] == [None]:
        values = [-1, *values[1:]]
    try:
        array = np.asarray(values if np.size(values) else np.empty(np.shape(values), kind))
        with np.errstate(invalid="ignore"):  # what does not fit is refused below
            cast = array.astype(kind, copy=False)
        if kind != np.float32 and not np.array_equal(cast, array):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise TraceError(f"{what} is no array of {kind.__name__}: {values!r:.60}") from None
    return cast


SCHEMA = 4
"""Schema of manifest and columns together; 2 and 3 are read, too."""
TokenLimit = Annotated[
    int, Meta(ge=1, lt=1 << 31, description="a whole number from 1 to 2147483647")
]
"""The limit of a request's output."""
VocabularyHash = Annotated[
    str,
    Meta(
        pattern=r"^[1-9][0-9]{0,8}(-[0-9a-f]{16})?\Z",
        description="a count, alone or with '-' and 16 hex digits",
    ),
]
"""What `identity.vocabulary_hash` returns; the count alone where no tokenizer was at hand."""


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The facts of a trace as a whole; unknown ones are None, as the drafter where none ran."""

    target: str | None = None
    drafter: str | None = None
    tokenizer: str | None = None
    vocabulary_hash: VocabularyHash | None = None
    neural_cap: Annotated[int, Meta(ge=1, le=32767)] | None = None
    """Count at which neural accepted counts are censored; longer drafts cannot be replayed."""
    draft_cap: Annotated[int, Meta(ge=1, le=128)] | None = None
    """Drafted tokens stored per position; None if they were not recorded."""
    confidences: tuple[str, ...] = ()
    engine: str | None = None
    engine_version: str | None = None
    hardware: str | None = None
    sampling: dict[str, Any] = {}
    source: str | None = None
    adaspec_version: str = __version__
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        """Refuse what does not fit together, since all later checks rely on these fields."""
        check(self, "manifest of a trace", TraceError)
        if self.confidences != tuple(each for each in CONFIDENCES if each in self.confidences):
            known = f"expected some of {', '.join(CONFIDENCES)}, in this order"
            raise TraceError(f"confidences is {shown(self.confidences)}: {known}")
        if self.draft_cap is not None and self.neural_cap is None:
            raise TraceError("draft_cap is given but neural_cap is null")
        if self.confidences and self.draft_cap is None:
            raise TraceError("confidences are given but draft_cap is null")

    @property
    def max_tokens(self) -> int | None:
        """The most output tokens of requests that do not say their own; None if not known."""
        limit = self.sampling.get("max_tokens")
        return limit if fits(limit, TokenLimit) else None

    def to_json(self) -> str:
        """The text of `manifest.json`; keys are sorted, so equal manifests give equal bytes."""
        return json.dumps(structs.asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_record(cls, record: object, where: str) -> Manifest:
        """The manifest in a JSON object; raises a `TraceError` that starts with `where`."""
        values = upgraded(record, "a trace's manifest", SCHEMA, where, TraceError)
        if "draft_cap" not in values:
            raise TraceError(f"{where}: not a trace's manifest: it has no 'draft_cap'")
        # Facts of before: a made-up trace, one of another kind than dense, or of scrambled tokens.
        values.pop("synthetic", None)
        check_word(values.pop("kind", "dense"), ("dense",), f"{where}: kind", TraceError)
        values.pop("fingerprint", None)
        if values.pop("scrambled", False):
            raise TraceError(f"{where}: its token ids are scrambled: record the trace again")
        return convert(values, cls, where, TraceError)

    def difference(self, other: Manifest) -> str | None:
        """The first difference by which rows of the two traces would not mean the same, or None."""
        for name, present in structs.asdict(self).items():
            past = getattr(other, name)
            unknown = name == "vocabulary_hash" and None in (present, past)
            if present != past and not unknown and name not in ("adaspec_version", "source"):
                return f"{name} is {past!r} there and {present!r} here"
        return None


def manifest_for(
    requests: Sequence[Request],
    target: str | None = None,
    drafter: str | None = None,
    source: str | None = None,
) -> Manifest:
    """The manifest of a trace of these requests; the caps are as `write_trace` says."""
    drafts = [each.drafted_tokens for each in requests if each.drafted_tokens is not None]
    counts = [each.neural_accepted for each in requests if each.neural_accepted is not None]
    draft_cap = max((each.shape[1] for each in drafts if each.ndim == 2), default=0)
    neural_cap = max((int(each.max(initial=1)) for each in counts), default=0)
    return Manifest(
        target=target,
        drafter=drafter if drafter is not None or not counts else "unknown",
        neural_cap=max(neural_cap, draft_cap) or None,
        draft_cap=draft_cap or None,
        confidences=tuple(name for axis, name in enumerate(CONFIDENCES) if _known(requests, axis)),
        source=source,
    )


def _known(requests: Sequence[Request], axis: int) -> bool:
    """Whether any request has confidences of this kind."""
    known = [each.confidences for each in requests if each.confidences is not None]
    return any(each.shape[2:] > (axis,) and not np.isnan(each[..., axis]).all() for each in known)


def check_request(request: Request, manifest: Manifest, where: str) -> None:
    """Raise a `TraceError` that starts with `where` for the first rule that the request breaks."""
    for broken, said, *values in _rules(request, manifest):
        if np.any(broken):
            first = int(np.argmax(broken))
            value = str(values[0][first]) if values else ""
            raise TraceError(f"{where}: {said.replace('{1}', str(first)).replace('{0}', value)}")


def _rules(request: Request, manifest: Manifest) -> Iterator[tuple[Any, ...]]:
    """Every rule as what breaks it and what is said then; each relies on those before it.

    What is said may hold {1} for the first place that is broken, and {0} for the value there of an
    array that comes third.
    """
    for name in ("workload", "id"):
        text = getattr(request, name)
        # Half a pair of surrogates is text to Python, and to nobody else.
        is_text = isinstance(text, str) and text.encode("utf-8", "ignore").decode() == text
        yield not (is_text and text), f"{name}={text!r:.60} is empty, or no text"
    limit = request.max_tokens
    is_limit = limit is None or fits(limit, TokenLimit)
    yield not is_limit, f"max_tokens={limit} is not from 1 to 2147483647"
    for name in ("prompt_tokens", "output_tokens", "neural_accepted", "ngram_accepted"):
        values = getattr(request, name)
        if values is None:
            continue
        yield values.ndim != 1, f"{name} has {values.ndim} dimensions, expected 1"
        if name.endswith("_tokens"):
            yield values < 0, f"{name}[{{1}}]={{0}} is not a token id", values
            continue
        yield values[:1] != -1, f"{name}[0]={{0}} is not null: prefill verifies no draft", values
        later = np.arange(len(values)) > 0
        yield (values < 0) & later, f"{name}[{{1}}] is null or negative"
    accepted, drafted = request.neural_accepted, request.drafted_tokens
    confidences = request.confidences
    if accepted is None:
        told = drafted is not None or confidences is not None
        yield told, "drafted tokens or confidences without neural_accepted"
        return
    length, cap = len(accepted), manifest.neural_cap or 0
    yield cap == 0, "holds neural_accepted, but the manifest's neural_cap is null"
    at = "accepted={0} at position {1}"
    yield accepted > cap, f"{at} exceeds neural_cap={cap}", accepted
    beyond = np.arange(length) + accepted > length
    yield beyond, f"{at} reaches beyond the output's end at {length}", accepted
    if drafted is None:
        yield confidences is not None, "confidences without drafted tokens"
        return
    cap, shape = manifest.draft_cap or 0, drafted.shape
    yield cap == 0, "holds drafted_tokens, but the manifest's draft_cap is null"
    is_table = len(shape) == 2 and shape[0] == length and shape[1] <= cap
    yield not is_table, f"drafted_tokens has shape {shape}, expected {(length, cap)}"
    present, offsets = drafted >= 0, np.arange(shape[1])
    draft_len = present.sum(axis=1)
    gap = (present != (offsets < draft_len[:, None])) | (drafted < -1)
    yield gap.any(axis=1), "drafted_tokens at position {1} has a negative token id or a gap"
    yield draft_len[:1] > 0, "drafted_tokens at position 0 is not null: prefill drafts none"
    # If a draft fills the whole stored width, the real draft may have been longer.
    yield (draft_len < cap) & (accepted > draft_len), f"{at} exceeds its draft", accepted
    if request.paired:
        last = max(length - 1, 0)
        follows = request.output_tokens[np.minimum(np.arange(length)[:, None] + offsets, last)]
        wrong = (offsets < accepted[:, None]) & (drafted != follows)
        yield wrong.any(axis=1), f"{at}, but its drafted tokens are not the output's", accepted
    if confidences is None:
        return
    shape = (*shape, len(CONFIDENCES))
    yield confidences.shape != shape, f"confidences has shape {confidences.shape}, expected {shape}"
    known = ~np.isnan(confidences)
    homeless = (known & ~present[..., None]).any(axis=(1, 2))
    yield homeless, "a confidence at position {1} belongs to no drafted token"
    yield np.isinf(confidences).any(axis=(1, 2)), "a confidence at position {1} is infinite"
    for axis, name in enumerate(CONFIDENCES):
        unnamed = name not in manifest.confidences and known[:, :, axis].any()
        yield unnamed, f"holds {name}, which the manifest's confidences do not name"
