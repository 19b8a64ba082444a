"""Whatever is sound survives a trace."""

import tempfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_recordings import NEURAL_CAP, random_request, recorded
from synthetic import without_drafts

from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import CONFIDENCES, Manifest
from adaspec.trace.writer import TraceWriter


def any_request(rng, id):
    """A request of which much may be missing, not drafted everywhere, or of another run."""
    shows_tokens, shows_confidences, is_paired, is_copied = rng.random(4) < 0.6
    made = random_request(rng, tokens=shows_tokens, output_tokens=(1, 9))
    workload = str(rng.choice(["chat", "edits", "käse"]))
    request = recorded(made, id, workload, rng if shows_confidences else None)
    if shows_tokens:
        drafted = rng.integers(made.accepted, NEURAL_CAP + 1)
        was_not = np.arange(NEURAL_CAP) >= drafted[:, None]
        request.drafted_tokens[was_not] = -1
        request.drafted_tokens[0] = -1
        if shows_confidences:
            request.confidences[was_not] = np.nan
    if not is_paired:
        request = replace(request, output_tokens=request.output_tokens[:-1])
    if is_copied:
        copied = np.append(-1, rng.integers(0, 20, rng.integers(9))).astype(np.int16)
        request = replace(request, ngram_accepted=copied)
    return request if rng.random() < 0.8 else without_drafts(request)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 6), st.integers(1, 6))
def test_any_sound_requests_come_back_as_they_went_in(seed, count, shard_rows):
    manifest = Manifest(neural_cap=NEURAL_CAP, draft_cap=NEURAL_CAP, confidences=CONFIDENCES)
    rng = np.random.default_rng(seed)
    sent = [any_request(rng, str(at)) for at in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        with TraceWriter(path, manifest, shard_rows=shard_rows) as writer:
            for request in sent:
                writer.add(request)
        reader = TraceReader(path)
        assert reader.warnings == []
        found = list(reader.requests())
    for one, other in zip(found, sent, strict=True):
        for field in fields(other):
            got, expected = getattr(one, field.name), getattr(other, field.name)
            np.testing.assert_array_equal(got, expected)
            assert getattr(got, "dtype", None) == getattr(expected, "dtype", None)
