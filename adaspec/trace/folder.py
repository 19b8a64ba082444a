"""Where a trace's files lie, and how one comes into being whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from adaspec.documents import parse_json, read_file
from adaspec.errors import TraceError
from adaspec.places import sync_folder

MANIFEST = "manifest.json"
COMPLETE = "complete.json"
"""Written last: its absence tells a reader that the writer was cut off."""

LARGEST_BYTES = 16 << 20
"""Of either: whatever is larger is something else."""
RESTORE = "restore it from a copy"

_SHARD = re.compile(r"part-(\d{5,})\.parquet")
_UNFINISHED = ".unfinished"


def shard_name(number: int) -> str:
    """The file name of shard `number`."""
    return f"part-{number:05d}.parquet"


def shard_number(name: str) -> int | None:
    """The number of the shard called `name`, or None if no shard is called so."""
    found = _SHARD.fullmatch(name)
    return int(found.group(1)) if found else None


def is_leftover(name: str) -> bool:
    """Whether `name` is a file that a writer began and never finished."""
    return name.startswith(".") and name.endswith(_UNFINISHED)


def is_ours(name: str) -> bool:
    """Whether a trace folder is where `name` comes from: anything else is never deleted."""
    return name in (MANIFEST, COMPLETE) or shard_number(name) is not None or is_leftover(name)


def is_trace(path: Path) -> bool:
    """Whether a folder's manifest is one of a trace, of whatever schema."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and {"schema", "kind"} <= manifest.keys()


@contextmanager
def new_file(path: Path, shown: Path | None = None) -> Iterator[BinaryIO]:
    """A file for the owner alone that appears at `path`, on disk, only if the block succeeds.

    On any failure nothing is left; one of the operating system is a `TraceError` about `shown`.
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
    """The error for a path that the operating system would not let us write."""
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
    """How many shards the finished trace at `path` has, None if its writer never finished."""
    file = path / COMPLETE
    try:
        content = read_file(file, TraceError, RESTORE, LARGEST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TraceError(f"{file}: cannot be read ({error}): {RESTORE}") from error
    record = parse_json(content, str(file), TraceError, RESTORE)
    if not isinstance(record, dict) or not isinstance(record.get("shards"), int):
        raise TraceError(f'{file}: is not {{"shards": number}}: {RESTORE}')
    return int(record["shards"])
