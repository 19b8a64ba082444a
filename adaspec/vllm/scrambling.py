"""Permutes token ids secretly, in the same way for everything recorded with the same key file."""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from adaspec.errors import ServingError
from adaspec.policy.protocol import Ints
from adaspec.trace.schema import LoggedStep, Request
from adaspec.trace.scramble import scramble_ids, scramble_request

_BYTES = 32


@dataclass(frozen=True, slots=True)
class Scrambler:
    """Scrambles the token ids in rows; anyone with the key can undo this."""

    secret: bytes
    vocabulary: int

    def request(self, request: Request) -> Request:
        """The request with permuted token ids."""
        return scramble_request(request, self.secret, self.vocabulary)

    def step(self, step: LoggedStep) -> LoggedStep:
        """The step with permuted token ids."""
        return replace(
            step,
            drafted_tokens=self._ids(step.drafted_tokens),
            prompt_tokens=self._ids(step.prompt_tokens),
            output_tokens=self._ids(step.output_tokens),
        )

    def _ids(self, tokens: Ints | None) -> Ints | None:
        return None if tokens is None else scramble_ids(tokens, self.secret, self.vocabulary)


def secret_in(file: Path) -> bytes:
    """The secret in a key file; a missing file is made, readable by its owner only."""
    try:
        # An existing file may be in a folder that cannot be written to.
        if not os.path.lexists(file):
            _make(file)
        if not file.is_file():  # reading a pipe would wait forever
            raise ValueError("it is no file")
        secret = bytes.fromhex(file.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise ServingError(
            f"scramble_key '{file}' cannot be made or read ({error}): choose another place"
        ) from error
    if len(secret) != _BYTES:
        raise ServingError(
            f"scramble_key '{file}' holds {len(secret)} bytes, not {_BYTES}: choose another place, "
            "or delete an empty one that a killed start left"
        )
    return secret


def _make(file: Path) -> None:
    """Make a complete key file or none; if another process makes it first, that file stays."""
    descriptor, temporary = tempfile.mkstemp(prefix=".scramble-key.", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w") as key:
            key.write(secrets.token_hex(_BYTES) + "\n")
        with suppress(FileExistsError):
            os.link(temporary, file)
    finally:
        Path(temporary).unlink(missing_ok=True)
