import policy_fakes as fakes
import pytest

from adaspec.errors import PolicyError
from adaspec.policy import shipped
from adaspec.policy.shipped import find_policy, shipped_policies


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "_IN_WHEEL", tmp_path / "wheel")
    fakes.written(tmp_path / "wheel" / "llama-8b")
    return tmp_path / "wheel"


def test_a_shipped_policy_is_found_by_its_name(home):
    assert shipped_policies() == {"llama-8b": home / "llama-8b"}
    assert find_policy("llama-8b") == home / "llama-8b"


def test_a_folder_comes_before_a_shipped_name(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama-8b").mkdir()
    assert find_policy("llama-8b").resolve() == tmp_path / "llama-8b"
    assert find_policy(tmp_path) == tmp_path


def test_an_unknown_name_is_refused_with_the_nearest_known_one(home):
    with pytest.raises(PolicyError, match="did you mean 'llama-8b'"):
        find_policy("lama-8b")
    with pytest.raises(PolicyError, match="shipped are llama-8b"):
        find_policy("nowhere/at/all")


def test_a_file_is_no_policy(home):
    with pytest.raises(PolicyError, match="is a file"):
        find_policy(home / "llama-8b" / "CARD.md")


def test_a_build_without_policies_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "_IN_WHEEL", tmp_path / "wheel")
    monkeypatch.setattr(shipped, "_IN_CHECKOUT", tmp_path / "policies")
    assert shipped_policies() == {}
    with pytest.raises(PolicyError, match="none is shipped with this build"):
        find_policy("llama-8b")
