"""The rules that every row of a trace must obey, checked both on writing and on reading."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import TraceError
from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import CONFIDENCES, Request

_INT32 = 2**31 - 1
"""The largest limit that its column holds."""


def check_request(request: Request, manifest: Manifest, where: str) -> None:
    """Raise a `TraceError` that starts with `where` for the first rule that the request breaks.

    Neural counts never reach beyond the end of their list, as they exclude the bonus token. If they
    are paired, accepted tokens must be those of the output. Recorded n-gram counts may exceed the
    output's end: in the public traces they do by up to 19 tokens.
    """
    for name in ("workload", "id"):
        text = getattr(request, name)
        # Half a pair of surrogates is text to Python, and to nobody else.
        if not isinstance(text, str) or not text or text.encode("utf-8", "ignore").decode() != text:
            raise TraceError(f"{where}: {name}={text!r:.60} is empty, or no text")
    if request.max_tokens is not None and not 1 <= request.max_tokens <= _INT32:
        raise TraceError(f"{where}: max_tokens={request.max_tokens} is not from 1 to {_INT32}")
    for name in ("prompt_tokens", "output_tokens", "neural_accepted", "ngram_accepted"):
        values = getattr(request, name)
        if values is None:
            continue
        if values.ndim != 1:
            raise TraceError(f"{where}: {name} has {values.ndim} dimensions, expected 1")
        if name.endswith("_tokens"):
            _refuse(values < 0, f"{where}: {name}[{{1}}]={{0}} is not a token id", values)
            continue
        first = f"{where}: {name}[{{1}}]={{0}} is not null: prefill verifies no draft"
        _refuse(values[:1] != -1, first, values)
        broken = (values < 0) & (np.arange(len(values)) > 0)
        _refuse(broken, f"{where}: {name}[{{1}}] is null or negative")
    accepted = request.neural_accepted
    if accepted is None:
        if request.drafted_tokens is not None or request.confidences is not None:
            raise TraceError(f"{where}: drafted tokens or confidences without neural_accepted")
        return
    if manifest.neural_cap is None:
        raise TraceError(f"{where}: holds neural_accepted, but the manifest's neural_cap is null")
    length = len(accepted)
    at = f"{where}: accepted={{0}} at position {{1}}"
    cap = manifest.neural_cap
    _refuse(accepted > cap, f"{at} exceeds neural_cap={cap}", accepted)
    end = f"{at} reaches beyond the output's end at {length}"
    _refuse(np.arange(length) + accepted > length, end, accepted)
    if request.drafted_tokens is None:
        if request.confidences is not None:
            raise TraceError(f"{where}: confidences without drafted tokens")
        return
    _check_drafts(request, request.drafted_tokens, accepted, manifest, where)


def _check_drafts(
    request: Request,
    drafted: NDArray[np.int32],
    accepted: NDArray[np.int16],
    manifest: Manifest,
    where: str,
) -> None:
    if manifest.draft_cap is None:
        raise TraceError(f"{where}: holds drafted_tokens, but the manifest's draft_cap is null")
    cap, length, offsets = manifest.draft_cap, len(accepted), np.arange(drafted.shape[-1])
    if drafted.ndim != 2 or len(drafted) != length or drafted.shape[1] > cap:
        raise TraceError(
            f"{where}: drafted_tokens has shape {drafted.shape}, expected {(length, cap)}"
        )
    present = drafted >= 0
    draft_len = present.sum(axis=1)
    gap = (present != (offsets < draft_len[:, None])) | (drafted < -1)
    _refuse(
        gap.any(axis=1),
        f"{where}: drafted_tokens at position {{1}} has a negative token id or a gap",
    )
    if length and draft_len[0]:
        raise TraceError(f"{where}: drafted_tokens at position 0 is not null: prefill drafts none")
    # If a draft fills the whole stored width, the real draft may have been longer.
    at = f"{where}: accepted={{0}} at position {{1}}"
    _refuse((draft_len < cap) & (accepted > draft_len), f"{at} exceeds its draft", accepted)
    if request.paired:
        last = max(length - 1, 0)
        follows = request.output_tokens[np.minimum(np.arange(length)[:, None] + offsets, last)]
        wrong = (offsets < accepted[:, None]) & (drafted != follows)
        said = f"{at}, but its drafted tokens are not the output's"
        _refuse(wrong.any(axis=1), said, accepted)
    confidences = request.confidences
    if confidences is None:
        return
    shape = (*present.shape, len(CONFIDENCES))
    if confidences.shape != shape:
        raise TraceError(f"{where}: confidences has shape {confidences.shape}, expected {shape}")
    known = ~np.isnan(confidences)
    at = f"{where}: a confidence at position {{1}}"
    _refuse((known & ~present[..., None]).any(axis=(1, 2)), f"{at} belongs to no drafted token")
    _refuse(np.isinf(confidences).any(axis=(1, 2)), f"{at} is infinite")
    for axis, name in enumerate(CONFIDENCES):
        if name not in manifest.confidences and known[:, :, axis].any():
            raise TraceError(f"{where}: holds {name}, which the manifest's confidences do not name")


def _refuse(broken: Any, text: str, values: NDArray[Any] | None = None) -> None:
    """Raise a `TraceError` about the first place that is broken, if there is one.

    In the text, {0} stands for the value and {1} for the place.
    """
    if broken.any():
        first = int(np.argmax(broken))
        value = "" if values is None else str(values[first])
        raise TraceError(text.replace("{0}", value).replace("{1}", str(first)))
