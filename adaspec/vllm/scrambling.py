"""Token ids behind one secret permutation for all that is recorded under the same key file."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from adaspec.errors import ServingError
from adaspec.policy.protocol import Ints
from adaspec.trace.schema import LoggedStep, Request
from adaspec.trace.scramble import scramble_ids, scramble_request

_BYTES = 32


@dataclass(frozen=True, slots=True)
class Scrambler:
    """Scrambles rows; whoever holds the key can undo it."""

    secret: bytes
    vocabulary: int

    def request(self, request: Request) -> Request:
        """The request under the permutation."""
        return scramble_request(request, self.secret, self.vocabulary)

    def step(self, step: LoggedStep) -> LoggedStep:
        """The step under the permutation."""
        return replace(
            step,
            drafted_tokens=self._ids(step.drafted_tokens),
            prompt_tokens=self._ids(step.prompt_tokens),
            output_tokens=self._ids(step.output_tokens),
        )

    def _ids(self, tokens: Ints | None) -> Ints | None:
        return None if tokens is None else scramble_ids(tokens, self.secret, self.vocabulary)


def secret_in(file: Path) -> bytes:
    """The secret in a key file, which is made, for the owner alone, where there is none."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read(file)
    except OSError as error:
        raise ServingError(
            f"scramble_key '{file}' cannot be made ({error.strerror}): choose another place"
        ) from error
    secret = secrets.token_bytes(_BYTES)
    with os.fdopen(descriptor, "w") as key:
        key.write(secret.hex() + "\n")
    return secret


def _read(file: Path) -> bytes:
    if not file.is_file():  # reading a pipe would wait for ever
        raise ServingError(f"scramble_key '{file}' is no file: choose another place")
    try:
        secret = bytes.fromhex(file.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise ServingError(
            f"scramble_key '{file}' cannot be read as one ({error}): choose another place"
        ) from None
    if len(secret) != _BYTES:
        raise ServingError(
            f"scramble_key '{file}' holds {len(secret)} bytes, not {_BYTES}: it is no key of ours: "
            "choose another place"
        )
    return secret
