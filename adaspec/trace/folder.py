"""The files of a trace's folder, each of which is written whole or not at all."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

from adaspec.documents import read_json
from adaspec.errors import TraceError
from adaspec.files import UNFINISHED, Kind

MANIFEST = "manifest.json"
COMPLETE = "complete.json"
"""Name of the file that is written last, so a trace without it was cut off."""

MAX_BYTES = 16 << 20
"""Largest size of either JSON file. A larger file is not one of a trace."""
RESTORE = "restore it from a copy, or record or import the trace again"

_SHARD = re.compile(r"part-\d{5,}\.parquet")


def shard_name(number: int) -> str:
    """The file name of shard `number`."""
    return f"part-{number:05d}.parquet"


def is_shard(name: str) -> bool:
    """True for the name of a shard."""
    return _SHARD.fullmatch(name) is not None


def is_leftover(name: str) -> bool:
    """True for a file that a writer began but did not finish."""
    return name.startswith(".") and name.endswith(UNFINISHED)


def _is_trace_file(name: str) -> bool:
    return name in (MANIFEST, COMPLETE) or is_shard(name) or is_leftover(name)


TRACE = Kind("a trace", MANIFEST, _is_trace_file, TraceError)
FOLDER_MODE, FILE_MODE = 0o700, 0o600
"""A trace holds the texts of others, so only its owner may read it."""


def lock(path: Path) -> int:
    """Lock the folder of a trace until the returned descriptor is closed or this process ends.

    Raises `BlockingIOError` if another process has locked it.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        pass  # Some network file systems have no locks; writing goes on without one.
    return descriptor


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
