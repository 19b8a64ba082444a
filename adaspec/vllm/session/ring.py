"""The ring while serving: on the host, on the device that drafts, and in its file.

The file holds users' text, so only its owner may read it. It is written whenever an eighth of the
ring is new, and as the server stops.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from multiprocessing.util import Finalize
from pathlib import Path

import numpy as np
import torch

from adaspec.draft.matches import Ring, read_ring, write_ring
from adaspec.errors import DraftError
from adaspec.kernels.batch import RingOnDevice, to_device
from adaspec.policy.protocol import Ints
from adaspec.vllm.choice import Target
from adaspec.vllm.options import Options

log = logging.getLogger("vllm.adaspec")


class ServedRing:
    """The ring of one rank; a restarted server begins with what its file holds."""

    def __init__(self, options: Options, target: Target) -> None:
        self.ring = Ring(options.ring_tokens)
        self._device: RingOnDevice | None = None
        self._vocabulary = target.vocabulary_hash or ""
        self._path = None if options.ring_file is None else Path(options.ring_file)
        if self._path is not None and options.replica is not None:
            self._path = self._path.with_name(f"{self._path.name}-{options.replica}")
        self._unsaved = 0
        self._writer: threading.Thread | None = None
        if self._path is not None and self._path.exists():
            try:
                for answer in read_ring(self._path, self._vocabulary, target.vocabulary):
                    self.ring.append(answer)
            except DraftError as error:
                log.warning("adaspec: the ring begins empty: %s", error)
        # A `Finalize` runs when a worker process ends; `atexit` handlers may not.
        self.close = Finalize(self, self._save, exitpriority=10)
        """Writes the file for the last time."""

    def on_device(self, slots: int, device: torch.device) -> RingOnDevice:
        """The ring on a device, which gets what the ring takes from now on, too."""
        self._device = RingOnDevice.empty(self.ring.capacity, slots, device)
        if len(self.ring.tokens):
            self._send(0)
        return self._device

    def take(self, answers: Sequence[Sequence[int]]) -> None:
        """Take in answers of requests that have ended."""
        before, moves = len(self.ring.tokens), self.ring.moves
        for answer in answers:
            self.ring.append(answer)
            self._unsaved += len(answer)
        first = before if self.ring.moves == moves else 0
        if len(self.ring.tokens) > first:
            self._send(first)
        if self._path is not None and self._unsaved > self.ring.capacity // 8:
            self._wait_for_writer()
            self._writer = threading.Thread(target=self._write, args=(self.ring.searched,))
            self._writer.start()
            self._unsaved = 0

    def give_up(self) -> None:
        """Let no request find anything: the device may lack tokens that the host has."""
        if self._device is not None:
            self._device.known.zero_()

    def _send(self, first: int) -> None:
        """Send the tokens from a place on to the device."""
        if self._device is not None:
            tokens, device = self.ring.tokens, self._device.tokens.device
            known = to_device(np.array([len(tokens)], np.int32), device)
            self._device.tokens[first : len(tokens)].copy_(to_device(tokens[first:].copy(), device))
            self._device.known.copy_(known)

    def _save(self) -> None:
        self._wait_for_writer()
        if self._unsaved:
            self._write(self.ring.searched)

    def _wait_for_writer(self) -> None:
        if self._writer is not None:
            self._writer.join()

    def _write(self, searched: Ints) -> None:
        if self._path is not None:
            try:
                write_ring(self._path, searched, self._vocabulary)
            except (DraftError, OSError) as error:
                log.warning("adaspec: the ring is not kept: %s", error)
