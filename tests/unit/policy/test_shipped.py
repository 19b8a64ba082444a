import policy_fakes as fakes
import pytest

from adaspec.errors import PolicyError
from adaspec.policy import shipped
from adaspec.policy.shipped import find_policy, shipped_policies


def test_a_policy_is_a_folder_or_the_name_of_a_shipped_one(tmp_path, monkeypatch):
    wheel = tmp_path / "wheel"
    monkeypatch.setattr(shipped, "_IN_WHEEL", wheel)
    monkeypatch.setattr(shipped, "_IN_CHECKOUT", tmp_path / "policies")
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
