"""Hundreds of damaged policies: each is refused in one line, or holds what the whole one holds.

Where the checksums were made to vouch for the damage, so that parsing itself is reached, what comes
back may say something else, but never anything that a policy could not hold. Archives that somebody
crafted are in tests/unit/policy/test_artifact.py.
"""

import os
import struct
import tracemalloc

import numpy as np
import policy_fakes as fakes
import pytest

from adaspec.errors import PolicyError
from adaspec.policy.artifact import MAX_BYTES, load_artifact

RAW, RESIGNED = 100, 500
NAMES = sorted(MAX_BYTES)
PARSED = ["manifest.json", "network.npz", "tables.npz"]
MOST_MEMORY = 4 << 20
"""Beyond which a load would be out of proportion to a policy of 4 kB."""

ODD = [b"", b"\x00", b"\xff" * 8, b"PK\x05\x06" + bytes(18), b"\x93NUMPY", b"{}", b"[" * 5000]


def damaged(content, rng):
    """Bytes near `content`: flipped, cut, doubled, overwritten or grown."""
    at, start = rng.integers(len(content), size=2)
    before, after = content[:at], content[at:]
    flipped = bytearray(content)
    for place in rng.integers(len(content), size=rng.integers(1, 4)):
        flipped[place] ^= 1 << int(rng.integers(8))
    number = struct.pack("<I", int(rng.choice([0, 1, 2**16, 2**31, 2**32 - 1])))
    ways = (
        bytes(flipped),
        before,
        before + after[int(rng.integers(1, 20)) :],
        before + rng.bytes(int(rng.integers(1, 50))) + after,
        before + content[start : start + int(rng.integers(1, 200))] + after,
        before + number + after[4:],
        ODD[int(rng.integers(len(ODD)))],
    )
    return ways[int(rng.integers(len(ways)))]


def broken(files, rng, vouched):
    """The files with damage that the checksums vouch for, or that they know nothing of."""
    one, other = rng.choice(NAMES, 2, replace=False)
    changed = {one: files[other], other: files[one]}
    if rng.random() < 0.8:
        name = str(rng.choice(PARSED if vouched else NAMES))
        changed = {name: damaged(files[name], rng)}
    return fakes.resigned(files | changed) if vouched else files | changed


def is_possible(artifact, files):
    arrays = [*artifact.networks.values(), *artifact.tables.values()]
    return all(array.dtype.kind in "biuf" for array in arrays) and (
        sum(array.nbytes for array in arrays) <= sum(map(len, files.values()))
    )


def test_hundreds_of_damaged_policies_are_refused_or_harmless(tmp_path, monkeypatch):
    for name in ("system", "popen", "abort"):
        monkeypatch.setattr(os, name, lambda *_: pytest.fail("a policy ran code"))
    folder = fakes.written(tmp_path / "p")
    files = fakes.contents(folder)
    rng = np.random.default_rng(3)
    refused = accepted = 0
    tracemalloc.start()
    try:
        for number in range(RAW + RESIGNED):
            vouched = number >= RAW
            fakes.laid(folder, broken(files, rng, vouched))
            tracemalloc.reset_peak()
            try:
                found = load_artifact(folder)
            except PolicyError as error:
                refused += 1
                assert "\n" not in str(error)
                assert len(str(error)) < 1000
            else:
                accepted += 1
                assert (
                    is_possible(found, fakes.contents(folder))
                    if vouched
                    else fakes.contents(folder) == files
                )
            peak = tracemalloc.get_traced_memory()[1]
            assert peak < MOST_MEMORY, f"damage {number} took {peak} bytes"
    finally:
        tracemalloc.stop()
    # Both ends are reached, or the damage is not what it is meant to be.
    assert refused > 400
    assert accepted > 10
    assert [each.name for each in tmp_path.iterdir()] == ["p"]
