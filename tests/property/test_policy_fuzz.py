"""Ten thousand damaged policies: each is refused in one line, or says just what the whole one says.

Where the checksums were made to vouch for the damage, so that parsing itself is reached, what comes
back may say something else, but never anything that a policy could not hold.
"""

import os
import struct
import sys
import tempfile
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / "tests" / "unit" / "policy"))

import policy_fakes as fakes  # noqa: E402

from adaspec.errors import PolicyError  # noqa: E402
from adaspec.policy.artifact import MAX_BYTES, load_artifact  # noqa: E402

RAW, RESIGNED = 3_000, 7_000
NAMES = sorted(MAX_BYTES)
PARSED = ["manifest.json", "networks.npz", "tables.npz"]
MOST_MEMORY = 4 << 20
"""Beyond which a load would be out of proportion to a policy of 4 kB."""

ODD = [b"", b"\x00", b"\xff" * 8, b"PK\x05\x06" + bytes(18), b"\x93NUMPY", b"{}", b"[" * 5000]
HEADERS = [
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999,), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (0, 999999999999999999), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
    b"{'descr': '<f8', 'fortran_order': True, 'shape': (1,), }",
    b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    b"{'descr': '|V8', 'fortran_order': False, 'shape': (1,), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (1,), 'x': open('x', 'w')}",
    b"__import__('os').abort()",
    b"(" * 9000,
    b"-" * 9000 + b"1",
]


def damaged(content, rng):
    """Bytes near `content`: flipped, cut, doubled, overwritten or grown."""
    content = bytearray(content)
    kind = rng.integers(7)
    at = int(rng.integers(max(1, len(content))))
    if kind == 0:
        for _ in range(int(rng.integers(1, 4))):
            if content:
                content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del content[at:]
    elif kind == 2:
        del content[at : at + int(rng.integers(1, 20))]
    elif kind == 3:
        content[at:at] = rng.bytes(int(rng.integers(1, 50)))
    elif kind == 4:
        start = int(rng.integers(max(1, len(content))))
        content[at:at] = content[start : start + int(rng.integers(1, 200))]
    elif kind == 5:
        content[at : at + 4] = struct.pack("<I", int(rng.choice([0, 1, 2**16, 2**31, 2**32 - 1])))
    else:
        return ODD[int(rng.integers(len(ODD)))]
    return bytes(content)


def record_at(archive, rng):
    """A place within the zip's own records, which a flip anywhere would seldom hit."""
    marks = [b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"]
    mark = marks[int(rng.integers(3))]
    starts = [at for at in range(len(archive)) if archive.startswith(mark, at)]
    return starts[int(rng.integers(len(starts)))] + int(rng.integers(4, 46))


def crafted(archive, rng):
    """An archive whose records lie, or one with a crafted array under a sum that fits it."""
    if rng.random() < 0.5:
        at = record_at(archive, rng)
        content = bytearray(archive)
        for offset in range(int(rng.integers(1, 5))):
            if at + offset < len(content):
                content[at + offset] = int(rng.integers(256))
        return bytes(content)
    header = HEADERS[int(rng.integers(len(HEADERS)))]
    if rng.random() < 0.4:
        header = damaged(header, rng)
    header = header[:60_000] + b" " * int(rng.integers(3)) + b"\n"
    version = bytes([int(rng.choice([1, 1, 1, 2, 3])), 0])
    body = b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + bytes(8)
    return archive_of(b"a.npy", body, rng)


def archive_of(name, body, rng):
    """A zip of one member, its sizes now and then a lie."""
    sizes = [len(body), len(body)]
    if rng.random() < 0.2:
        sizes[int(rng.integers(2))] = int(rng.choice([0, 2**30, 2**32 - 1]))
    method = int(rng.choice([0, 0, 0, 0, 8, 12, 14, 99]))
    about = struct.pack("<HHHHHIIIHH", 20, 0, method, 0, 33, zlib.crc32(body), *sizes, len(name), 0)
    local = b"PK\x03\x04" + about + name + body
    entry = b"PK\x01\x02" + struct.pack("<H", 20) + about + bytes(14) + name
    end = struct.pack("<HHHHIIH", 0, 0, 1, 1, len(entry), len(local), 0)
    return local + entry + b"PK\x05\x06" + end


def swapped(files, rng):
    one, other = rng.choice(NAMES, 2, replace=False)
    return {**files, one: files[other], other: files[one]}


def unsigned(files, rng):
    """Damage that the checksums know nothing of."""
    kind = rng.integers(8)
    name = str(rng.choice(NAMES))
    if kind == 0:
        return swapped(files, rng)
    if kind == 1:
        return {each: content for each, content in files.items() if each != name}
    if kind == 2:
        return {**files, f"{name}{rng.integers(9)}": b""}
    return {**files, name: damaged(files[name], rng)}


def signed(files, rng):
    """Damage that the checksums vouch for."""
    kind = rng.integers(4)
    if kind == 0:
        return fakes.resigned(swapped(files, rng))
    name = str(rng.choice(PARSED))
    if kind == 1 and name.endswith(".npz"):
        return fakes.resigned({**files, name: crafted(files[name], rng)})
    return fakes.resigned({**files, name: damaged(files[name], rng)})


@pytest.fixture
def place():
    """In memory where there is such a disk: ten thousand folders are many files."""
    shared = Path("/dev/shm")
    home = shared if shared.is_dir() and os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=home) as folder:
        yield Path(folder)


def load(folder):
    """The artifact, or None where it was refused as it should be."""
    try:
        return load_artifact(folder)
    except PolicyError as error:
        said = str(error)
        assert "\n" not in said
        assert len(said) < 1000
        return None


def is_possible(artifact):
    arrays = [*artifact.networks.values(), *artifact.tables.values()]
    return all(array.dtype.kind in "biuf" for array in arrays) and (
        sum(array.nbytes for array in arrays) <= sum(artifact.files.values())
    )


@pytest.mark.slow
def test_ten_thousand_damaged_policies_are_refused_or_harmless(place, monkeypatch):
    for name in ("system", "popen", "abort"):
        monkeypatch.setattr(os, name, lambda *_: pytest.fail("a policy ran code"))
    folder = fakes.written(place / "p")
    whole, files = load_artifact(folder), fakes.contents(folder)
    rng = np.random.default_rng(3)
    refused = accepted = 0
    tracemalloc.start()
    try:
        for number in range(RAW + RESIGNED):
            vouched = number >= RAW
            fakes.laid(folder, (signed if vouched else unsigned)(files, rng))
            tracemalloc.reset_peak()
            found = load(folder)
            peak = tracemalloc.get_traced_memory()[1]
            assert peak < MOST_MEMORY, f"damage {number} took {peak} bytes"
            if found is None:
                refused += 1
            else:
                accepted += 1
                assert is_possible(found) if vouched else fakes.same(found, whole)
    finally:
        tracemalloc.stop()
    # Both ends are reached, or the damage is not what it is meant to be.
    assert refused > 8_000
    assert accepted > 100
    assert sorted(each.name for each in place.iterdir()) == ["p"]
