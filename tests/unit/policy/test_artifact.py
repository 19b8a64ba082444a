"""A policy's folder: written whole, read back only when every byte of it is vouched for."""

import errno
import io
import os
import pickle
import zipfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import policy_fakes as fakes
import pytest
from refusals import refusal

from adaspec.errors import PolicyError
from adaspec.policy import artifact
from adaspec.policy.artifact import find_policy, load_artifact, shipped_policies


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
