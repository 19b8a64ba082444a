"""Split a folder into pieces of at most 60 MB with checksums, and join them again.

    python eval/gpu/pack.py split wheels -o pieces
    python eval/gpu/pack.py join pieces -o wheels

For wheels on their way to a machine without network, and results on their way back. Needs nothing
but Python 3.11.4 or newer.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import IO

PIECE_BYTES = 60_000_000
MANIFEST = "pieces.json"
"""Names every piece with its size and checksum; written last."""


class PackError(Exception):
    """A folder cannot be split, or pieces cannot be joined."""


class Pieces(io.RawIOBase):
    """A stream to write to, which begins a new file whenever one is full."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most = folder, most
        self._file: IO[bytes] | None = None
        self._digest, self._size = hashlib.sha256(), 0
        self.written: list[dict[str, object]] = []

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Write to as many pieces as it takes."""
        left = memoryview(data)
        while left:
            if self._file is None:
                self._digest, self._size = hashlib.sha256(), 0
                self._file = (self._folder / self._name).open("xb")
            part = left[: self._most - self._size]
            self._file.write(part)
            self._digest.update(part)
            self._size += len(part)
            left = left[len(part) :]
            if self._size == self._most:
                self._end()
        return len(data)

    @property
    def _name(self) -> str:
        return f"piece-{len(self.written):04}"

    def _end(self) -> None:
        assert self._file is not None
        self._file.close()
        self._file = None
        sha256 = self._digest.hexdigest()
        self.written.append({"name": self._name, "bytes": self._size, "sha256": sha256})

    def close(self) -> None:
        """End the last piece."""
        if self._file is not None:
            self._end()
        super().close()


class Joined(io.RawIOBase):
    """Pieces as one stream to read."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = iter(paths)
        self._file: IO[bytes] | None = None

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        """Read from the piece at hand, or the next one."""
        while True:
            if self._file is None:
                path = next(self._paths, None)
                if path is None:
                    return 0
                self._file = path.open("rb")
            count = self._file.readinto(buffer)  # type: ignore[attr-defined]
            if count:
                return int(count)
            self._file.close()
            self._file = None


def split(folder: Path, pieces: Path, most: int) -> list[Path]:
    """Write a folder's files to pieces; their paths."""
    if not folder.is_dir():
        raise PackError(f"{folder}: no such folder")
    if pieces.exists() and any(pieces.iterdir()):
        raise PackError(f"{pieces}: is not empty: name a new folder for the pieces")
    if pieces.resolve().is_relative_to(folder.resolve()):
        raise PackError(f"{pieces}: lies in the folder that is to be split: put it elsewhere")
    pieces.mkdir(parents=True, exist_ok=True)
    with Pieces(pieces, most) as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
        archive.add(folder, arcname=".")
    # The archive's end is written as it is closed, and the last piece's after that.
    manifest = {"schema": 1, "pieces": stream.written}
    (pieces / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return [pieces / str(each["name"]) for each in stream.written]


def checked(pieces: Path) -> list[Path]:
    """The pieces in their order; raises a `PackError` where one is missing or damaged."""
    try:
        manifest = json.loads((pieces / MANIFEST).read_text(encoding="utf-8"))
        entries = [(each["name"], each["sha256"]) for each in manifest["pieces"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PackError(f"{pieces / MANIFEST}: cannot be read ({error}): get it again") from error
    problems = []
    for name, sha256 in entries:
        path = pieces / name
        if not path.is_file():
            problems.append(f"{name} is missing")
            continue
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                problems.append(f"{name} is damaged")
    if problems:
        raise PackError(f"{pieces}: {', '.join(problems)}: get these again")
    return [pieces / name for name, _ in entries]


def join(pieces: Path, folder: Path) -> None:
    """Write the files of checked pieces to a new folder, all or nothing."""
    if folder.exists():
        raise PackError(f"{folder}: is there already: name a new folder")
    paths = checked(pieces)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        whole = Path(scratch) / "whole"
        stream = io.BufferedReader(Joined(paths), 1 << 20)
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            archive.extractall(whole, filter="data")
        whole.replace(folder)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("split", "join"))
    parser.add_argument("source", type=Path, help="the folder to split, or that of the pieces")
    parser.add_argument("-o", "--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--piece-bytes", type=int, default=PIECE_BYTES, help="%(default)s at most")
    options = parser.parse_args()
    if not 0 < options.piece_bytes <= PIECE_BYTES:
        parser.error(f"--piece-bytes {options.piece_bytes}: give 1 to {PIECE_BYTES}")
    try:
        if options.what == "split":
            paths = split(options.source, options.out, options.piece_bytes)
            print(f"{options.out}: {len(paths)} pieces")
        else:
            join(options.source, options.out)
            print(f"{options.out}: whole")
    except PackError as error:
        print(f"pack: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
