"""A drafter is known by its config, its name, or by what its user says that it is."""

import json

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from adaspec.errors import ServingError
from adaspec.vllm.choice import Target
from adaspec.vllm.drafters import check_there, drafter_method

TARGET = Target(name="org/target", vocabulary=128, width=64, tokenizer="org/target")


@pytest.fixture
def folder(tmp_path):
    """A head of the first format, in a folder whose name says nothing."""
    made = tmp_path / "mine"
    made.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    config |= {"vocab_size": 128, "hidden_size": 64}
    (made / "config.json").write_text(json.dumps(config))
    return made


def test_a_folder_that_does_not_exist_is_named_and_a_hub_id_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "there").mkdir(parents=True)
    for model in ("models/gone", "./gone", "../gone", "/gone", "~/gone", "a/b/gone"):
        with pytest.raises(ServingError, match=f"drafter '{model}': there is no such folder"):
            check_there("drafter", model)
    for model in ("models/there", "org/gone", "gone", "s3://a/b/c", "a/b/c.gguf"):
        check_there("drafter", model)


def test_where_the_config_does_not_tell_the_name_does(tmp_path, folder):
    assert drafter_method(str(folder), TARGET) == "draft_model"
    named = folder.rename(tmp_path / "EAGLE3-of-mine")
    assert drafter_method(str(named), TARGET) == "eagle3"
