"""Key files: made once, whole, for their owner alone."""

import secrets
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from adaspec.errors import ServingError
from adaspec.vllm import scrambling
from adaspec.vllm.scrambling import secret_in


def test_a_key_is_made_once_for_its_owner_alone_and_nothing_beside_it(tmp_path):
    key = tmp_path / "key"
    secret = secret_in(key)
    assert len(secret) == 32
    assert secret_in(key) == secret
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [key]


@pytest.mark.parametrize("moment", ["write", "name"])
def test_a_start_that_is_killed_as_it_makes_a_key_stands_in_no_other_ones_way(
    tmp_path, monkeypatch, moment
):
    def killed(*_):
        raise KeyboardInterrupt

    # Before the first byte is written, or before the key has its name.
    target = {"write": "os.fdopen", "name": "adaspec.vllm.scrambling.rename_to_free"}[moment]
    monkeypatch.setattr(target, killed)
    with pytest.raises(KeyboardInterrupt):
        secret_in(tmp_path / "key")
    monkeypatch.undo()
    assert not (tmp_path / "key").exists()
    assert len(secret_in(tmp_path / "key")) == 32


def test_processes_that_start_at_once_have_the_same_key(tmp_path):
    for at in range(20):
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(secret_in, [tmp_path / str(at)] * 8))
        assert len(set(found)) == 1


def test_whoever_is_second_takes_the_key_of_the_first(tmp_path, monkeypatch):
    key, theirs = tmp_path / "key", secrets.token_bytes(32)
    rename = scrambling.rename_to_free

    def late(made, file):
        key.write_text(theirs.hex())
        rename(made, file)

    monkeypatch.setattr(scrambling, "rename_to_free", late)
    assert secret_in(key) == theirs
    assert list(tmp_path.iterdir()) == [key]


def test_an_empty_key_file_is_to_be_deleted(tmp_path):
    (tmp_path / "key").touch()
    with pytest.raises(ServingError, match=r"holds 0 bytes.*delete"):
        secret_in(tmp_path / "key")


def test_a_place_where_no_key_can_be_made_is_named(tmp_path):
    with pytest.raises(
        ServingError, match=r"none/key' cannot be made or read \(.*No such.*another"
    ):
        secret_in(tmp_path / "none" / "key")
