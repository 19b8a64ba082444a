from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from synthetic import write_synthetic

from adaspec.errors import TraceError
from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import Request
from adaspec.trace.writer import TraceWriter

RequestOf = Callable[..., Request]


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Let the kernel fail writes past `size`, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_the_kernel_fails_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(TraceError, match=r"part-00000\.parquet: cannot be written"),
        files_limited_to(20_000),
    ):
        write_synthetic(tmp_path / "t", 0)
    assert names(tmp_path) == []


def test_a_full_disk_during_a_recording_keeps_the_finished_shards(
    tmp_path: Path, dense: Manifest, request_of: RequestOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        pytest.raises(TraceError) as caught,
        TraceWriter(tmp_path / "t", dense, shard_rows=1) as writer,
    ):
        writer.add(request_of("0"))
        monkeypatch.setattr(os, "fsync", fail)
        writer.add(request_of("1"))
    monkeypatch.undo()
    assert str(caught.value) == (
        f"{tmp_path}/t/part-00001.parquet: the disk is full: free some space, or choose another "
        "disk"
    )
    assert names(tmp_path / "t") == ["manifest.json", "part-00000.parquet"]
    reader = TraceReader(tmp_path / "t")
    assert reader.rows == 1
    assert "cut off" in reader.warnings[0]
