"""Figures that one process counts and another shows: a small file of numbers, mapped by both.

The API server names a folder in its environment before it starts its engines; each engine's first
rank counts in a file of its own there. A file is a line of JSON that says what is being served,
padded to a fixed length, and then one 64-bit float per figure of `FIGURES`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import mmap
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.documents import parse_json
from adaspec.errors import AdaspecError

FOLDER_VARIABLE = "ADASPEC_METRICS_DIR"
"""Names the folder to every process of a server."""

SOURCES = ("none", "ngram", "neural", "splice")
REASONS = {
    "none": ("policy", "nothing_to_copy", "recorded", "min_tokens", "fault"),
    "ngram": ("alone", "switched"),
    "neural": ("whole", "trimmed"),
    "splice": ("whole", "trimmed"),
}
"""Why a decision is what it is, by its source.

none: the policy proposed nothing; it proposed to copy and there was nothing; the request is being
recorded; any draft would reach its min_tokens; something failed. ngram: nothing was drafted by the
neural drafter for the request, or it was and the copy was taken instead. neural and splice: all
drafted tokens, or fewer.
"""
DRAFTERS = ("ngram", "neural", "splice")
LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
"""Upper bounds of the buckets that draft lengths are counted in."""
TIMES_S = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 1.0)
"""Upper bounds of the buckets that decision times are counted in."""
DRAFTED = ("none", "short", "long")
"""Steps by what they verified: no draft, at most so many drafted tokens per request, or more."""
SHORT = 4
FORWARDS = ("draft", "keep_alive")
STAGES = (
    "admit",
    "keep",
    "plan",
    "proceed",
    "settle",
    "learn",
    "release",
    "look-up",
    "batch",
    "time",
    "expects",
    "other",
)
LOSSES = ("queue", "disk", "limit", "rejected", "incomplete", "closed")

FIGURES = (
    "steps",
    *(f"decisions/{source}/{reason}" for source in SOURCES for reason in REASONS[source]),
    *(f"drafted/{source}" for source in DRAFTERS),
    *(f"accepted/{source}" for source in DRAFTERS),
    *(f"expected/{source}" for source in DRAFTERS),
    *(f"realised/{source}" for source in DRAFTERS),
    *(f"length/{bound}" for bound in (*LENGTHS, "inf")),
    "length_sum",
    *(f"time/{bound}" for bound in (*TIMES_S, "inf")),
    "time_sum",
    "modelled_s",
    *(f"clocked/{drafted}" for drafted in DRAFTED),
    *(f"clocked_s/{drafted}" for drafted in DRAFTED),
    *(f"clocked_modelled_s/{drafted}" for drafted in DRAFTED),
    *(f"forwards/{kind}" for kind in FORWARDS),
    *(f"faults/{stage}" for stage in STAGES),
    *(f"dropped/{loss}" for loss in LOSSES),
    "unverified",
    "switched_off",
)
PLACE = {name: at for at, name in enumerate(FIGURES)}

_SUFFIX = ".counters"
_ABOUT_BYTES = 4096
_BYTES = _ABOUT_BYTES + 8 * len(FIGURES)


_PREFIX = "adaspec-metrics-"
_made: set[str] = set()
"""Folders that this process made; forked children inherit them."""


def announce_folder() -> Path:
    """The folder of this server's counters, made and named to its processes-to-be if need be.

    A server is one process and those that `multiprocessing` starts for it. Whoever runs engines of
    its own and then starts a server as a command hands down its environment too: that server's
    figures are not theirs, so it makes a folder of its own. A folder that an operator named is
    everybody's who inherits the name.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named and Path(named).is_dir() and not _is_another_servers(named):
        return Path(named)
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    os.environ[FOLDER_VARIABLE] = folder
    _made.add(folder)
    atexit.register(_remove, folder, os.getpid())
    return Path(folder)


def _is_another_servers(folder: str) -> bool:
    ours = folder in _made or multiprocessing.parent_process() is not None
    return Path(folder).name.startswith(_PREFIX) and not ours


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # forked children inherit what runs at exit
        shutil.rmtree(folder, ignore_errors=True)


class Counters:
    """One engine's figures, to be counted up; each figure is one thread's."""

    def __init__(self, folder: Path | None, about: dict[str, Any]) -> None:
        """In the folder's file of this engine; in memory alone where there is no folder."""
        memory: Any = bytearray(_BYTES)
        if folder is not None:
            # Figures that nobody sees are better than no serving.
            with contextlib.suppress(OSError):
                memory = _mapped(folder, about)
        self._figures: NDArray[np.float64] = np.frombuffer(memory, np.float64, offset=_ABOUT_BYTES)

    def add(self, name: str, count: float = 1.0) -> None:
        """Count one figure up."""
        self._figures[PLACE[name]] += count

    def put(self, name: str, value: float) -> None:
        """Set one figure."""
        self._figures[PLACE[name]] = value

    def __getitem__(self, name: str) -> float:
        return float(self._figures[PLACE[name]])

    def lost(self, why: str, rows: int) -> None:
        """Trace rows that were not written."""
        self.add(f"dropped/{why}", rows)


def _mapped(folder: Path, about: dict[str, Any]) -> mmap.mmap:
    text = json.dumps(about).encode()
    if len(text) >= _ABOUT_BYTES:
        text = json.dumps({key: str(value)[:200] for key, value in about.items()}).encode()
    descriptor, path = tempfile.mkstemp(dir=folder, suffix=".new")
    try:
        os.truncate(descriptor, _BYTES)
        os.pwrite(descriptor, text.ljust(_ABOUT_BYTES), 0)
        memory = mmap.mmap(descriptor, _BYTES)
    finally:
        os.close(descriptor)
    # Under its name only once it is whole: a reader never sees a half.
    Path(path).rename(Path(path).with_suffix(_SUFFIX))
    return memory


def read_counters(folder: Path) -> Iterator[tuple[dict[str, Any], NDArray[np.float64]]]:
    """What every engine that counts in the folder serves, and its figures now."""
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        with contextlib.suppress(OSError, AdaspecError):
            content = path.read_bytes()
            if len(content) == _BYTES:
                about = parse_json(content[:_ABOUT_BYTES], str(path), AdaspecError)
                yield about, np.frombuffer(content, np.float64, offset=_ABOUT_BYTES)
