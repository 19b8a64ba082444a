from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from synthetic import write_synthetic

from adaspec.errors import TraceError
from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import Request
from adaspec.trace.writer import TraceWriter, whole_trace

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


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


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
    with (
        pytest.raises(TraceError) as caught,
        TraceWriter(tmp_path / "t", dense, shard_rows=1) as writer,
    ):
        writer.add(request_of("0"))
        monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
        writer.add(request_of("1"))
    monkeypatch.undo()
    assert str(caught.value) == (
        f"{tmp_path}/t/part-00001.parquet: the disk is full: free some space, or choose another "
        "disk"
    )
    assert names(tmp_path / "t") == ["manifest.json", "part-00000.parquet"]
    assert TraceReader(tmp_path / "t").rows == 1


def test_a_full_disk_while_replacing_leaves_the_old_trace(
    trace: Path, dense: Manifest, request_of: RequestOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TraceError), whole_trace(trace, dense, force=True) as writer:
        writer.add(request_of("new"))
        monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    monkeypatch.undo()
    assert TraceReader(trace).rows == 7
    assert names(trace.parent) == ["trace"]


def test_a_read_only_folder_is_one_clear_line(
    tmp_path: Path, dense: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The superuser writes anywhere, so the refusal is acted.
    monkeypatch.setattr(os, "mkdir", failing(errno.EROFS))
    with pytest.raises(TraceError, match="choose another place"):
        TraceWriter(tmp_path / "t", dense)
    assert names(tmp_path) == []
