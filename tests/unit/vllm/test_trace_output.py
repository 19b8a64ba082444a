"""Whatever the disk does, nothing is raised and every row is counted."""

import os
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import LoggedStep, Request
from adaspec.vllm.trace_output import TraceOutput, folder_bytes

LOGGED = Manifest(kind="logged")


def step(at):
    return LoggedStep("w", "7", at, 2, 1, drafted_tokens=np.array([1, 2], np.int32))


def output_in(tmp_path, lost, max_bytes=1 << 30, manifest=LOGGED, flush_s=60.0):
    def count(why, rows):
        lost[why] += rows

    return TraceOutput(tmp_path / "trace", tmp_path, manifest, max_bytes, flush_s, count)


@pytest.mark.parametrize("fault", ["deleted", "full", "a file"])
def test_rows_that_the_disk_does_not_take_are_counted(tmp_path, monkeypatch, fault):
    def full(*_):
        raise OSError(28, "No space left on device")

    lost = Counter()
    if fault == "a file":
        (tmp_path / "trace").write_text("a file")
    made = output_in(tmp_path, lost, flush_s=0.0)
    made.add(step(0))
    made.flush_if_due()
    if fault == "deleted":
        shutil.rmtree(tmp_path / "trace")
    elif fault == "full":
        monkeypatch.setattr(os, "fsync", full)
    for at in range(1, 11):
        made.add(step(at))
    made.flush_if_due()
    made.add(step(11))
    made.close()
    assert lost == {"disk": 12 if fault == "a file" else 11}
    monkeypatch.undo()
    if fault == "full":
        assert len(list(TraceReader(tmp_path / "trace").steps())) == 1


@pytest.mark.parametrize("kind", ["dense", "logged"])
def test_the_limit_holds_whatever_lay_there_before(tmp_path, kind):
    (tmp_path / "older").write_bytes(b"x" * 50_000)
    lost, rng = Counter(), np.random.default_rng(1)
    made = output_in(tmp_path, lost, max_bytes=120_000, manifest=Manifest(kind=kind))
    for at in range(400):
        output = rng.integers(0, 1 << 30, 100).astype(np.int32)
        if kind == "dense":
            made.add(Request("w", str(at), output[:50], output))
        else:
            text = {"prompt_tokens": output[:50], "output_tokens": output, "output_len": 100}
            made.add(replace(step(0), id=str(at), **text))
    made.close()
    assert folder_bytes(tmp_path) <= 120_000
    reader = TraceReader(tmp_path / "trace")
    kept = len(list(reader.requests() if kind == "dense" else reader.steps()))
    assert 0 < kept < 400
    assert lost == {"limit": 400 - kept}
