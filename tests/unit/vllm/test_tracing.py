"""What a server that records goes on with, and what it refuses as it starts."""

from dataclasses import replace

import numpy as np
import pytest

from adaspec.errors import ServingError
from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import Request
from adaspec.trace.writer import TraceWriter
from adaspec.vllm.tracing import check_can_continue

MANIFEST = Manifest(kind="dense", target="models/target")


def write_trace(folder):
    with TraceWriter(folder, MANIFEST) as writer:
        tokens = np.arange(4, dtype=np.int32)
        writer.add(Request("chat", "0", prompt_tokens=tokens, output_tokens=tokens))


def test_a_trace_of_the_same_making_is_gone_on_with(tmp_path):
    check_can_continue(tmp_path / "none yet", MANIFEST)
    check_can_continue(tmp_path, MANIFEST)
    write_trace(tmp_path / "trace")
    check_can_continue(tmp_path / "trace", MANIFEST)
    with TraceWriter(tmp_path / "trace", MANIFEST, append=True):
        pass


def test_what_a_killed_writer_left_in_an_empty_folder_is_in_nobodys_way(tmp_path):
    (tmp_path / ".manifest.json.0a1b2c3d.unfinished").write_text("{")
    check_can_continue(tmp_path, MANIFEST)
    write_trace(tmp_path)
    assert TraceReader(tmp_path).warnings == []


def test_what_cannot_be_gone_on_with_is_refused(tmp_path):
    write_trace(tmp_path / "trace")
    with pytest.raises(ServingError, match=r"target is 'models/target' there and 'other' here"):
        check_can_continue(tmp_path / "trace", replace(MANIFEST, target="other"))
    with (
        TraceWriter(tmp_path / "trace", MANIFEST, append=True),
        pytest.raises(ServingError, match="another process is recording into it"),
    ):
        check_can_continue(tmp_path / "trace", MANIFEST)
    with pytest.raises(ServingError, match="give an empty folder"):
        check_can_continue(tmp_path, MANIFEST)
