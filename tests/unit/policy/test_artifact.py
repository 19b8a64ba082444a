import errno
import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import policy_fakes as fakes
import pytest
from msgspec import structs
from refusals import refusal

from adaspec.cost.load import H100_LLAMA_3_1_8B, cost_document
from adaspec.errors import PolicyError
from adaspec.policy import artifact
from adaspec.policy.artifact import (
    MAX_BYTES,
    SCHEMA,
    PolicyManifest,
    find_policy,
    load_artifact,
    shipped_policies,
)


@pytest.fixture
def folder(tmp_path):
    return fakes.written(tmp_path / "mine")


def refused(path):
    return refusal(PolicyError, load_artifact, path)


def npz(array, save=np.savez):
    content = io.BytesIO()
    save(content, a=array)
    return content.getvalue()


def test_what_is_written_is_read_back(folder):
    found = load_artifact(folder)
    assert found.manifest == fakes.manifest()
    assert found.name == "mine"
    for held, given in ((found.networks, fakes.networks()), (found.tables, fakes.tables())):
        assert list(held) == sorted(given)
        for name, array in given.items():
            assert held[name].dtype == array.dtype
            assert held[name].flags.writeable
            np.testing.assert_array_equal(held[name], array)


def test_a_folder_that_is_no_whole_policy_is_told_what_is_wrong(tmp_path, folder, monkeypatch):
    assert "No such file or directory" in refused(tmp_path / "nowhere")
    assert "Not a directory" in refused(folder / "CARD.md")
    (tmp_path / "latest").symlink_to(folder)
    assert load_artifact(tmp_path / "latest").name == "mine"
    (folder / "run.py").write_text("")
    assert "holds 'run.py', which no policy of this build does" in refused(folder)
    (folder / "run.py").unlink()
    card = folder / "CARD.md"
    card.rename(folder / "CARD.md.old")
    assert "did you mean 'CARD.md'?" in refused(folder)
    (folder / "CARD.md.old").unlink()
    assert "CARD.md: is missing" in refused(folder)
    os.mkfifo(card)
    assert "CARD.md: is not a file" in refused(folder)
    card.unlink()
    fakes.written(folder, force=True)
    denied = PermissionError(errno.EACCES, "Permission denied", "x")
    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=denied))
    assert "cannot be read (Permission denied)" in refused(folder)


class Bomb:
    def __reduce__(self):
        return (os.abort, ())


ARMED = np.array([Bomb()], dtype=object)


def test_what_would_not_be_read_again_is_not_written(tmp_path):
    with pytest.raises(PolicyError, match="more than the 20000000"):
        fakes.written(tmp_path / "big", tables={"means": np.zeros(3_000_000)})
    with pytest.raises(PolicyError, match="array 'a' is of object"):
        fakes.written(tmp_path / "armed", networks={"a": ARMED})
    assert list(tmp_path.iterdir()) == []


def headed(descr, shape):
    """An archive of an array whose header says this."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        begin = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
        archive.writestr("a.npy", begin + header + bytes(8))
    return content.getvalue()


CRAFTED = {
    "compressed": (npz(np.zeros(1 << 22), np.savez_compressed), "claim more bytes"),
    "huge": (headed("'<f8'", "(1000000000000,)"), "network.npz: damaged"),
    "code": (headed("__import__('os').abort()", "(1,)"), "network.npz: damaged"),
    "objects": (npz(ARMED), "network.npz: damaged"),
    "pickled": (pickle.dumps(Bomb()), "network.npz: damaged"),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_a_crafted_archive_is_refused_unread_and_unevaluated(folder, case):
    content, said = CRAFTED[case]
    fakes.laid(folder, fakes.resigned({**fakes.contents(folder), "network.npz": content}))
    assert said in refused(folder)


def test_a_policy_is_a_folder_or_the_name_of_a_shipped_one(tmp_path, monkeypatch):
    wheel = tmp_path / "wheel"
    monkeypatch.setattr(artifact, "_IN_WHEEL", wheel)
    monkeypatch.setattr(artifact, "_IN_CHECKOUT", tmp_path / "policies")
    assert shipped_policies() == {}
    with pytest.raises(PolicyError, match="none is shipped with this build"):
        find_policy("llama-8b")
    policy = fakes.written(wheel / "llama-8b")
    assert shipped_policies() == {"llama-8b": policy}
    assert find_policy("llama-8b") == policy
    for name, said in (
        ("lama-8b", "did you mean 'llama-8b'"),
        ("nowhere/at/all", "shipped are llama-8b"),
        (policy / "CARD.md", "is a file"),
    ):
        with pytest.raises(PolicyError, match=said):
            find_policy(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama-8b").mkdir()
    assert find_policy("llama-8b").resolve() == tmp_path / "llama-8b", "a folder comes first"


def record(**changes):
    return {**json.loads(fakes.manifest().to_json()), **changes}


def manifest_refused(record):
    said = refusal(PolicyError, PolicyManifest.from_json, json.dumps(record), "m.json")
    assert said.startswith("m.json: ")
    assert len(said) < 400
    return said


def test_the_cost_model_comes_along_and_is_the_one_that_is_named():
    own = structs.replace(H100_LLAMA_3_1_8B, name="mine")
    manifest = fakes.manifest(cost="mine", step_costs=cost_document(own))
    assert PolicyManifest.from_json(manifest.to_json(), "m.json").cost_model == own
    assert fakes.manifest().cost_model == H100_LLAMA_3_1_8B
    assert fakes.manifest(cost="gone").cost_model is None
    assert "are of 'mine'" in manifest_refused(record(step_costs=cost_document(own)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "train the policy again"),
        ({"schema": SCHEMA + 1, "new_key": 1}, f"schema {SCHEMA + 1} is newer than the {SCHEMA}"),
        ({"sources": []}, "sources is []"),
        ({"sources": ["ngram"]}, "neural_cap is 8, which does not fit sources"),
        ({"cap": 4}, "neural_cap is 8, more than the cap 4"),
        ({"step_costs": {"tokens": [1, 2]}}, "step_costs: not a cost file"),
        ({"training_requests": ["0123"]}, "training_requests[0] is '0123': expected 16 hex digits"),
        ({"forwards": {"1": 9}}, "forwards has 9 at 1"),
    ],
)
def test_a_field_that_makes_no_sense_is_named(change, said):
    assert said in manifest_refused(record(**change))


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
    """What checksums vouch for may say something else, but nothing that a policy could not hold."""
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
