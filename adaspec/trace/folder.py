"""The files of a trace's folder, each of which is written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from adaspec.documents import read_json
from adaspec.errors import TraceError
from adaspec.places import sync_folder

MANIFEST = "manifest.json"
COMPLETE = "complete.json"
"""Name of the file that is written last, so a trace without it was cut off."""

MAX_BYTES = 16 << 20
"""Largest size of either JSON file. A larger file is not one of a trace."""
RESTORE = "restore it from a copy, or record or import the trace again"

_SHARD = re.compile(r"part-(\d{5,})\.parquet")
_UNFINISHED = ".unfinished"


def shard_name(number: int) -> str:
    """The file name of shard `number`."""
    return f"part-{number:05d}.parquet"


def shard_number(name: str) -> int | None:
    """The number of the shard called `name`, or None if that is not the name of a shard."""
    match = _SHARD.fullmatch(name)
    return int(match.group(1)) if match else None


def is_leftover(name: str) -> bool:
    """True for a file that a writer began but did not finish."""
    return name.startswith(".") and name.endswith(_UNFINISHED)


def is_trace_file(name: str) -> bool:
    """True for the files of a trace. Other files in a folder are never deleted."""
    return name in (MANIFEST, COMPLETE) or shard_number(name) is not None or is_leftover(name)


def is_trace(path: Path) -> bool:
    """True if the folder's manifest is that of a trace, of whatever schema."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and {"schema", "kind"} <= manifest.keys()


@contextmanager
def new_file(path: Path, shown: Path | None = None) -> Iterator[BinaryIO]:
    """A file, readable by its owner only, that appears at `path` if the block succeeds.

    If the block fails, nothing is left. An `OSError` becomes a `TraceError` about `shown`.
    """
    unfinished = path.with_name(f".{path.name}{_UNFINISHED}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise cannot_write(shown or path, error) from error


def cannot_write(path: Path, error: OSError) -> TraceError:
    """The error for a path that cannot be written."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        advice = "free some space, or choose another disk"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        advice = "choose a folder that you may write to"
    else:
        advice = "nothing was left there"
    return TraceError(f"{path}: cannot be written ({reason}): {advice}")


def write_complete(path: Path, shards: int, shown: Path) -> None:
    """Mark the trace at `path` as finished with `shards` shards."""
    with new_file(path / COMPLETE, shown) as file:
        file.write(json.dumps({"shards": shards}).encode() + b"\n")


def completed_shards(path: Path) -> int | None:
    """The number of shards of the trace at `path`, or None if its writer never finished."""
    file = path / COMPLETE
    try:
        record = read_json(file, TraceError, RESTORE, MAX_BYTES)
    except FileNotFoundError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("shards"), int):
        raise TraceError(f'{file}: is not {{"shards": number}}: {RESTORE}')
    return int(record["shards"])
