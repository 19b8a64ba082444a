"""Permutes token ids secretly, in the same way for everything recorded with the same key file."""

from __future__ import annotations

import errno
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
_LINKLESS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""The errors of file systems without hard links."""


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
    # An existing file may be in a folder that cannot be written to.
    if not os.path.lexists(file):
        try:
            _make(file)
        except OSError as error:
            raise ServingError(
                f"scramble_key '{file}' cannot be made ({error.strerror}): choose another place"
            ) from error
    return _read(file)


def _make(file: Path) -> None:
    """Make a complete key file or none; if another process makes it first, that file stays."""
    text = (secrets.token_bytes(_BYTES).hex() + "\n").encode()
    descriptor, temporary = tempfile.mkstemp(prefix=".scramble-key.", dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as key:
            key.write(text)
            key.flush()
            os.fsync(key.fileno())
        with suppress(FileExistsError):
            try:
                os.link(temporary, file)
            except OSError as error:
                if error.errno not in _LINKLESS:
                    raise
                exclusive_descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(exclusive_descriptor, "wb") as key:
                    key.write(text)
    finally:
        Path(temporary).unlink()


def _read(file: Path) -> bytes:
    if not file.is_file():  # reading a pipe would wait forever
        raise ServingError(f"scramble_key '{file}' is no file: choose another place")
    try:
        secret = bytes.fromhex(file.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise ServingError(
            f"scramble_key '{file}' cannot be read as one ({error}): choose another place"
        ) from None
    if not secret:
        raise ServingError(
            f"scramble_key '{file}' is empty, as a start that was killed leaves it: delete it, and "
            "a new one is made"
        )
    if len(secret) != _BYTES:
        raise ServingError(
            f"scramble_key '{file}' holds {len(secret)} bytes, not {_BYTES}: it is no key of ours: "
            "choose another place"
        )
    return secret
