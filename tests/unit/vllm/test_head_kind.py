"""A folder that is named must be there: vLLM would look for it on the hub, for minutes."""

import pytest

from adaspec.errors import ServingError
from adaspec.vllm.head_kind import check_there


def test_a_folder_that_does_not_exist_is_named_and_a_hub_id_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "there").mkdir(parents=True)
    for model in ("models/gone", "./gone", "../gone", "/gone", "~/gone", "a/b/gone"):
        with pytest.raises(ServingError, match=f"drafter '{model}': there is no such folder"):
            check_there("drafter", model)
    for model in ("models/there", "org/gone", "gone", "s3://a/b/c", "a/b/c.gguf"):
        check_there("drafter", model)
