import os
import shutil
from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import CONFIDENCES, Manifest, Request, check_request
from adaspec.vllm.recorder import (
    RequestRecord,
    TraceOutput,
    engine_id,
    folder_bytes,
    trace_key,
)

MANIFEST = Manifest(target="models/target")
CAP = 3
PROMPT = np.array([1, 2], np.int32)
OUTPUT = [5, 6, 7, 8]


def request_of(at, tokens=OUTPUT):
    return Request("w", str(at), PROMPT, np.array(tokens, np.int32))


def output_in(tmp_path, lost, max_bytes=1 << 30, manifest=MANIFEST, flush_s=60.0):
    def count(why, rows):
        lost[why] += rows

    return TraceOutput(tmp_path / "trace", tmp_path, manifest, max_bytes, flush_s, count)


@pytest.mark.parametrize("fault", ["deleted", "full", "a file"])
def test_rows_that_the_disk_does_not_take_are_counted(tmp_path, monkeypatch, fault):
    lost = Counter()
    if fault == "a file":
        (tmp_path / "trace").write_text("a file")
    made = output_in(tmp_path, lost, flush_s=0.0)
    made.add(request_of(0))
    made.flush_if_due()
    if fault == "deleted":
        shutil.rmtree(tmp_path / "trace")
    elif fault == "full":
        monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left")))
    for at in range(1, 11):
        made.add(request_of(at))
    made.flush_if_due()
    made.add(request_of(11))
    made.close()
    assert lost == {"disk": 12 if fault == "a file" else 11}
    monkeypatch.undo()
    if fault == "full":
        assert len(list(TraceReader(tmp_path / "trace").requests())) == 1


def test_the_limit_holds_whatever_lay_there_before(tmp_path):
    (tmp_path / "older").write_bytes(b"x" * 50_000)
    lost, rng = Counter(), np.random.default_rng(1)
    made = output_in(tmp_path, lost, max_bytes=120_000, flush_s=0.0)
    for at in range(400):
        made.add(request_of(at, rng.integers(0, 1 << 30, 150).astype(np.int32)))
        made.flush_if_due()
    made.close()
    assert folder_bytes(tmp_path) < 130_000
    kept = len(list(TraceReader(tmp_path / "trace").requests()))
    assert 0 < kept < 400
    assert lost == {"limit": 400 - kept}


def drafted(*drafts):
    """The record of a request with these drafts at positions 1, 2, .."""
    made = RequestRecord("w", "7", SimpleNamespace(max_tokens=4, prompt=PROMPT))
    for position, draft in enumerate(drafts, 1):
        tokens = np.array(draft, np.int32)
        made.drafts[position] = tokens, np.zeros((len(tokens), 3), np.float32)
    return made


def test_accepted_is_the_common_prefix_of_the_draft_and_what_came():
    drafts = [[6, 7, 8], [7, 9, 8], [9, 9, 9], [1, 2, 3]]
    made = drafted(*drafts).row(OUTPUT, True, CAP)
    assert made.neural_accepted.tolist() == [-1, 3, 1, 0]
    assert made.output_tokens.tolist() == OUTPUT
    assert made.drafted_tokens[1:].tolist() == drafts[:3]
    assert made.is_cut_off
    manifest = Manifest(neural_cap=CAP, draft_cap=CAP, confidences=CONFIDENCES)
    check_request(made, manifest, "here")


@pytest.mark.parametrize("drafts", [[[6, 7, 8]] * 2, [[6, 7, 8], [7], [8, 9, 9]]])
def test_a_missed_position_or_a_draft_that_ended_early_makes_no_row(drafts):
    assert drafted(*drafts).row(OUTPUT, True, CAP) is None


@pytest.mark.parametrize(("workload", "id"), [("a:b", "c/d e"), ("ü%", "::"), ("x", "1_2")])
@pytest.mark.parametrize("around", ["{}", "{}-1a2b3c4d", "cmpl-{}-0-1a2b3c4d", "2_{}-1a2b"])
def test_a_name_survives_what_an_engine_puts_around_it(workload, id, around):
    assert trace_key(around.format(engine_id(workload, id))) == (workload, id)
