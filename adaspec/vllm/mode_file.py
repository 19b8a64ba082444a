"""The mode that a file names, which an operator may change while the engine serves.

The engine's scheduler reads the file and sends the mode along with every step that it schedules, so
that all ranks of the engine change over in the same step.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import NamedTuple

from adaspec.errors import nearest, shown

log = logging.getLogger("vllm.adaspec")

WORDS = ("serve", "off")
"""The modes that the file may name; for what they are, see `options.MODES`."""
MODE_ATTRIBUTE = "adaspec_mode"
"""The attribute of a scheduled step that says in which mode it is served."""
PERIOD_S = 0.02
"""The file is looked at no more often than this, in steps that are scheduled anyway."""
_MAX_BYTES = 64


class Told(NamedTuple):
    """The mode of one step."""

    mode: str
    problem: str
    """What is wrong with the file, in the step that found it; else empty."""


class ModeFile:
    """Follows what the file says."""

    def __init__(self, path: str, mode: str) -> None:
        """`mode` holds until the file says otherwise."""
        self.path, self.mode = Path(path), mode
        self._due_s = -1.0
        self._seen: str | None = None

    def read(self) -> Told:
        """The mode of the step that is scheduled now; never raises."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return Told(self.mode, "")
        self._due_s = now_s + PERIOD_S
        try:
            with self.path.open("rb") as file:
                word = file.read(_MAX_BYTES).decode("utf-8", "replace").strip()
        except OSError as error:
            word = f"({error.strerror})"
        if word == self._seen:
            return Told(self.mode, "")
        self._seen = word
        if word not in WORDS:
            close, words = nearest(word, WORDS), " or ".join(WORDS)
            problem = f"mode_file '{self.path}' says {shown(word)}{close}: write {words}"
            log.warning("adaspec: %s; mode %s stays", problem, self.mode)
            return Told(self.mode, problem)
        if word != self.mode:
            log.info("adaspec: mode %s instead of %s, as mode_file says", word, self.mode)
        self.mode = word
        return Told(word, "")
