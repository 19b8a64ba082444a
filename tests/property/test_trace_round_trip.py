"""Whatever is sound survives a trace."""

import tempfile
from dataclasses import fields
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import CONFIDENCES, Request
from adaspec.trace.writer import TraceWriter

NEURAL_CAP, DRAFT_CAP = 5, 4
TOKEN = st.integers(0, 2**31 - 1)


@st.composite
def requests(draw, id):
    prompt = draw(st.lists(TOKEN, max_size=5))
    output = np.array(draw(st.lists(st.integers(0, 9), max_size=9)), dtype=np.int32)
    ngram = draw(st.none() | st.lists(st.integers(0, 20), max_size=9))
    neural = drafted = confidences = None
    if draw(st.booleans()):
        length = draw(st.sampled_from([len(output), len(output) + 1, max(0, len(output) - 1)]))
        neural = np.array(
            [draw(st.integers(0, min(NEURAL_CAP, length - at))) for at in range(length)], np.int16
        )
        neural[:1] = -1
        if draw(st.booleans()):
            drafted = np.full((length, DRAFT_CAP), -1, np.int32)
            for at in range(1, length):
                taken = min(int(neural[at]), DRAFT_CAP)
                drafted[at, : draw(st.integers(taken, DRAFT_CAP))] = draw(TOKEN)
                if neural[at] > DRAFT_CAP:
                    drafted[at] = draw(TOKEN)
                follows = output[at : at + taken]
                drafted[at, : len(follows)] = follows
            if draw(st.booleans()):
                number = st.floats(-9, 9, width=32) | st.just(float("nan"))
                confidences = np.full((length, DRAFT_CAP, 3), np.nan, np.float32)
                for at, token in zip(*np.nonzero(drafted >= 0), strict=True):
                    confidences[at, token] = [draw(number) for _ in CONFIDENCES]
    return Request(
        workload=draw(st.sampled_from(["chat", "edits", "käse"])),
        id=id,
        prompt_tokens=np.array(prompt, dtype=np.int32),
        output_tokens=output,
        neural_accepted=neural,
        drafted_tokens=drafted,
        confidences=confidences,
        ngram_accepted=None if ngram is None else np.array([-1, *ngram], dtype=np.int16),
    )


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_sound_requests_come_back_as_they_went_in(data):
    manifest = Manifest(neural_cap=NEURAL_CAP, draft_cap=DRAFT_CAP, confidences=CONFIDENCES)
    sent = [data.draw(requests(str(at))) for at in range(data.draw(st.integers(0, 6)))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        with TraceWriter(path, manifest, shard_rows=data.draw(st.integers(1, 6))) as writer:
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
