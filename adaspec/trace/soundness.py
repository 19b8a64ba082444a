"""The rules that every row of a trace must obey, checked both on writing and on reading."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from adaspec.errors import TraceError
from adaspec.records import fits
from adaspec.trace.manifest import Manifest, TokenLimit
from adaspec.trace.schema import CONFIDENCES, Request


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
