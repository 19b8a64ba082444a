"""Earlier answers on disk, for a server that is started again; only with `memory_dir`.

An answer is a line of JSON: of which vocabulary, whose, and its tokens. It is appended as soon as
it is stored, so a server may be killed at any time. Once a file holds as many tokens as the index,
it takes the place of the one before, and a new one begins: both together hold all that is
remembered.

The files hold users' text. Only their owner may read them, and of who may know an answer they have
a hash.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from multiprocessing.util import Finalize
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from adaspec.draft.answers import AnswerIndex, Stored
from adaspec.policy.base import needs_of
from adaspec.policy.learned import ServedPolicy
from adaspec.policy.protocol import Ints
from adaspec.vllm.choice import Target
from adaspec.vllm.options import Options
from adaspec.vllm.patching import in_one_line

log = logging.getLogger("vllm.adaspec")

_MAX_QUEUED = 4096
"""How many answers may wait for the disk; those that come then are not written."""
_CLOSE_S = 10.0


class KeptIndex(AnswerIndex):
    """An index that begins with the answers in a folder's files, and appends those that come."""

    def __init__(self, nbytes: int, path: Path, vocabulary: str, size: int) -> None:
        """`vocabulary` identifies what the tokens mean; they are below `size`."""
        super().__init__(nbytes)
        self._path, self._before = path, path.with_name(f"before-{path.name}")
        self._vocabulary, self._size = vocabulary, size
        self._read(self._before)
        self._written = self._read(path)
        """How many tokens the file holds."""
        self._failed = False
        self._queue: SimpleQueue[tuple[str, Ints] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="adaspec-answers", daemon=True)
        self._thread.start()
        # A `Finalize` runs when a worker process ends; `atexit` handlers may not.
        self.close = Finalize(self, self._finish, exitpriority=10)
        """Writes what waits; nothing may be added afterwards."""

    def add(self, tokens: ArrayLike, owner: int = 1) -> Stored | None:
        """Store an answer, and have it written if its owner's key is a text."""
        stored, key = super().add(tokens, owner), self.key_of(owner)
        if stored is not None and isinstance(key, str) and self._queue.qsize() < _MAX_QUEUED:
            self._queue.put((key, np.array(tokens, np.int32)))
        return stored

    def _finish(self) -> None:
        self._queue.put(None)
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while (answer := self._queue.get()) is not None:
            try:
                self._write(*answer)
            except OSError as error:
                if not self._failed:
                    why = in_one_line(error)
                    log.warning("adaspec: answers are not written to %s: %s", self._path, why)
                self._failed = True

    def _write(self, key: str, tokens: Ints) -> None:
        if self._written >= self.capacity:
            self._path.replace(self._before)
            self._written = 0
        said = {"vocabulary": self._vocabulary, "owner": key, "tokens": tokens.tolist()}
        # The break comes first, for a line that a full disk cut short must not spoil this one.
        line = f"\n{json.dumps(said)}".encode()
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)
        self._written += len(tokens)

    def _read(self, path: Path) -> int:
        """Store a file's answers; how many tokens these are, 0 if there is no file.

        The log says how many lines are not as they should be: these are left out.
        """
        if not path.exists():
            return 0
        tokens = answers = wrong = 0
        try:
            with path.open("rb") as file:
                for line in filter(bytes.strip, file):
                    answer = self._answer(line)
                    if answer is None:
                        wrong += 1
                    else:
                        super().add(answer[1], self.owner(answer[0]))
                        answers, tokens = answers + 1, tokens + len(answer[1])
        except OSError as error:
            log.warning("adaspec: answers in %s cannot be read: %s", path, in_one_line(error, 200))
        log.info("adaspec: %d earlier answers read from %s", answers, path)
        if wrong:
            log.warning(
                "adaspec: %d lines of %s are left out: no answers, or of another vocabulary",
                wrong,
                path,
            )
        return tokens

    def _answer(self, line: bytes) -> tuple[str, Ints] | None:
        """Whose answer a line holds, and its tokens; None if it holds none of this vocabulary."""
        try:
            said: Any = json.loads(line)
            key, tokens = said["owner"], np.array(said["tokens"])
            is_ours = said["vocabulary"] == self._vocabulary and isinstance(key, str)
        except Exception:  # a broken line fails in many ways
            return None
        is_text = tokens.ndim == 1 and tokens.dtype == np.int64 and len(tokens) > 0
        if not is_ours or not is_text or not 0 <= tokens.min() <= tokens.max() < self._size:
            return None
        return key, tokens.astype(np.int32)


def answers_of(policy: ServedPolicy, options: Options, target: Target) -> AnswerIndex | None:
    """The memory that a policy copies from, with what files have of it; None if it needs none."""
    if not options.memory_bytes or not needs_of(policy).memory:
        return None
    if options.memory_dir is None:
        return AnswerIndex(options.memory_bytes)
    name = "answers.jsonl" if options.replica is None else f"answers-{options.replica}.jsonl"
    file, vocabulary = Path(options.memory_dir) / name, target.vocabulary_hash or ""
    return KeptIndex(options.memory_bytes, file, vocabulary, target.vocabulary)
