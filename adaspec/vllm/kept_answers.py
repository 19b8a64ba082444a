"""Earlier answers on disk, for a server that is started again; only with `memory_dir`.

The file holds users' text. Only its owner may read it, and of who may know an answer it has a hash.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.answers import AnswerIndex
from adaspec.policy.base import needs_of
from adaspec.policy.protocol import Ints, Policy
from adaspec.vllm.events import Observer, Serving
from adaspec.vllm.patching import in_one_line

log = logging.getLogger("vllm.adaspec")

PERIOD_S = 300.0
"""So many seconds of answers a kill may cost."""
_CLOSE_S = 30.0
_ARRAYS = ("tokens", "owners", "keys", "vocabulary")


class KeptAnswers(Observer):
    """Writes an index's answers to a file now and then, and when the process ends."""

    def __init__(self, path: Path, index: AnswerIndex, vocabulary: str) -> None:
        """`vocabulary` identifies what the tokens mean."""
        self._path, self._index, self._vocabulary = path, index, vocabulary
        self._written_s, self._changed = time.monotonic(), False
        self._thread: threading.Thread | None = None
        # A `Finalize` runs when a worker process ends; `atexit` handlers may not.
        self._finalizer = Finalize(self, self._finish, exitpriority=10)

    def left(self, requests: list[str]) -> None:
        """Write in the background, if it is time: these requests' answers are stored."""
        self._changed = True
        is_writing = self._thread is not None and self._thread.is_alive()
        if time.monotonic() - self._written_s >= PERIOD_S and not is_writing:
            self._written_s, self._changed = time.monotonic(), False
            # Copies: the engine goes on meanwhile.
            seen = self._index.in_order(), dict(self._index.keys)
            self._thread = threading.Thread(target=self._write, args=seen, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write what has come since."""
        self._finalizer()

    def _finish(self) -> None:
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
            if self._thread.is_alive():
                return
        if self._changed:
            self._write(self._index.in_order(), self._index.keys)

    def _write(self, answers: tuple[Ints, Ints], keys: Mapping[object, int]) -> None:
        write_answers(self._path, contents_of(*answers, keys, self._vocabulary))


def answers_of(serving: Serving, policy: Policy) -> AnswerIndex | None:
    """The memory that a policy copies from, with what a file has of it; None if it needs none."""
    if not serving.memory_bytes or not needs_of(policy).memory:
        return None
    index = AnswerIndex(serving.memory_bytes)
    if serving.memory_file is not None:
        size = serving.vocabulary or 1 << 31
        read_answers(serving.memory_file, index, serving.vocabulary_hash or "", size)
    return index


def keeping(serving: Serving, index: AnswerIndex | None) -> list[Observer]:
    """What keeps an index in the file that the operator wants, if any; meant for the first rank."""
    if index is None or serving.memory_file is None:
        return []
    return [KeptAnswers(serving.memory_file, index, serving.vocabulary_hash or "")]


def contents_of(
    tokens: Ints, owners: Ints, keys: Mapping[object, int], vocabulary: str
) -> dict[str, NDArray[Any]]:
    """What a file holds of an index: only answers whose owners have a key that is a text."""
    named = {number: key for key, number in keys.items() if isinstance(key, str)}
    known = np.isin(owners, list(named)) | (tokens < 0)
    numbers = sorted(named)
    return {
        "tokens": tokens[known],
        "owners": np.searchsorted(numbers, owners[known]).astype(np.int32),
        "keys": np.array([named[number] for number in numbers], np.str_),
        "vocabulary": np.array(vocabulary, np.str_),
    }


def write_answers(path: Path, contents: dict[str, NDArray[Any]]) -> None:
    """Put a file in the place of the one before, or say in the log why that is not possible."""
    staged = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in path.parent.glob(f"{path.name}.*"):  # by killed servers: users' text, too
            left.unlink(missing_ok=True)
        # Its mode is 0600.
        descriptor, staged = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            np.savez(file, allow_pickle=False, **contents)
            file.flush()
            os.fsync(file.fileno())
        Path(staged).replace(path)
    except OSError as error:
        log.warning("adaspec: earlier answers are not written to %s: %s", path, in_one_line(error))
        if staged is not None:
            Path(staged).unlink(missing_ok=True)


def read_answers(path: Path, index: AnswerIndex, vocabulary: str, size: int) -> int:
    """Store a file's answers in an index; how many tokens these are, 0 if there is no file.

    Where anything in the file is not as it should be, nothing of it is stored, and the log says so.
    Tokens must be below `size`.
    """
    if not path.exists():
        return 0
    try:
        with np.load(path, allow_pickle=False) as file:
            tokens, owners, keys, of = (file[name] for name in _ARRAYS)
        problem = _problem(tokens, owners, keys, size)
        if str(of) != vocabulary:
            problem = "it is of another vocabulary"
    except Exception as error:  # a broken archive fails in many ways
        problem = in_one_line(error, 200)
    if problem:
        log.warning("adaspec: earlier answers in %s are left out: %s", path, problem)
        return 0
    numbers = [index.owner(str(key)) for key in keys]
    ends = np.flatnonzero(tokens < 0)
    for answer, owner in zip(np.split(tokens, ends), np.split(owners, ends), strict=True):
        stored = answer[answer >= 0]
        if len(stored):
            index.add(stored, numbers[owner[-1]])
    log.info("adaspec: %d tokens of earlier answers read from %s", index.tokens, path)
    return index.tokens


def _problem(tokens: NDArray[Any], owners: NDArray[Any], keys: NDArray[Any], size: int) -> str:
    """What is wrong with a file's arrays; empty if nothing is."""
    shapes = {tokens.shape, owners.shape}
    if {tokens.dtype, owners.dtype} != {np.dtype(np.int32)} or keys.dtype.kind != "U":
        return "its arrays are of other types"
    if len(shapes) != 1 or tokens.ndim != 1 or keys.ndim != 1:
        return "its arrays do not fit together"
    if len(tokens) and not (tokens.min() >= -1 and tokens.max() < size):
        return f"it has tokens that are not from 0 to {size - 1}"
    said = owners[tokens >= 0]
    if len(said) and not (said.min() >= 0 and said.max() < len(keys)):
        return "its answers are of nobody"
    return ""
