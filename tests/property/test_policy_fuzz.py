"""Ten thousand damaged policies: each is refused in one line, or says just what the whole one says.

Where the checksums were made to vouch for the damage, so that parsing itself is reached, what comes
back may say something else, but never anything that a policy could not hold. Archives that somebody
crafted are in tests/unit/policy/test_artifact.py.
"""

import os
import struct
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import policy_fakes as fakes
import pytest

from adaspec.errors import PolicyError
from adaspec.policy.artifact import MAX_BYTES, load_artifact

RAW, RESIGNED = 3_000, 7_000
NAMES = sorted(MAX_BYTES)
PARSED = ["manifest.json", "network.npz", "tables.npz"]
MOST_MEMORY = 4 << 20
"""Beyond which a load would be out of proportion to a policy of 4 kB."""

ODD = [b"", b"\x00", b"\xff" * 8, b"PK\x05\x06" + bytes(18), b"\x93NUMPY", b"{}", b"[" * 5000]


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
    if rng.random() < 0.25:
        return fakes.resigned(swapped(files, rng))
    name = str(rng.choice(PARSED))
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
