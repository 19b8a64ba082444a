"""A drafter is known by its config, its weights' names, or by what its user says that it is."""

import json
import logging
import sys
from importlib import import_module

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from adaspec.errors import ServingError
from adaspec.vllm.choice import Target
from adaspec.vllm.drafters import check_there, drafter_method, weight_names

TARGET = Target(name="org/target", vocabulary=128, width=64, tokenizer="org/target")
LAYER = ("layers.0.self_attn.q_proj.weight", "layers.0.mlp.up_proj.weight")
EAGLE = ("fc.weight", "embed_tokens.weight", *LAYER)
EAGLE3 = ("fc.weight", "midlayer.self_attn.q_proj.weight", "norm.weight", "lm_head.weight", "d2t")
LLAMA = ("model.embed_tokens.weight", "model.norm.weight", *(f"model.{name}" for name in LAYER))


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
    monkeypatch.setattr("adaspec.vllm.drafters._folder", lambda model, _: model == "models/cached")
    for model in ("models/gone", "./gone", "../gone", "/gone", "~/gone", "a/b/gone"):
        with pytest.raises(ServingError, match=f"drafter '{model}': there is no such folder"):
            check_there("drafter", model)
    for model in ("models/there", "models/cached", "org/gone", "gone", "s3://a/b/c", "a/b/c.gguf"):
        check_there("drafter", model)


def write_names(path, names):
    """Write a file of weights that has these, or an index of them."""
    if path.suffix == ".json":
        path.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, "one")}))
        return
    header = {name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for name in names}
    content = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(content).to_bytes(8, "little") + content)


@pytest.mark.parametrize(
    ("names", "method"),
    [
        (EAGLE, "eagle"),
        ([f"model.{name}" for name in EAGLE], "eagle"),
        (["fc.qweight", "fc.scales", *LAYER], "eagle"),
        (EAGLE3, "eagle3"),
        (["model.fc.weight", "model.layers.0.hidden_norm.weight", *LAYER], "eagle3"),
        (LLAMA, "draft_model"),
    ],
)
@pytest.mark.parametrize(
    "file",
    ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin.index.json"],
)
def test_a_head_is_known_by_its_weights_names_and_no_weights_are_opened(
    folder, file, names, method, monkeypatch
):
    import_module("transformers.configuration_utils")  # needs torch, which is forbidden below
    monkeypatch.setitem(sys.modules, "torch", None)
    (folder / "model.safetensors").write_bytes(b"not safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"not a pickle")
    write_names(folder / file, names)
    assert drafter_method(str(folder), TARGET) == method


def test_a_head_in_the_hubs_own_cache_is_known_by_its_weights(folder, monkeypatch):
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    write_names(folder / "model.safetensors", EAGLE)
    assert weight_names(str(folder)) == frozenset(EAGLE)
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache",
        lambda model, name, revision: str(folder / name) if model == "org/mine" else None,
    )
    assert weight_names("org/mine") == frozenset(EAGLE)
    assert weight_names("org/other") is None


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0{", b"\x02\0\0\0\0\0\0\0[]x"]
)
def test_weights_that_cannot_be_read_say_nothing(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    assert not weight_names(str(folder))


def test_where_nothing_tells_the_folders_name_does_and_it_is_said(tmp_path, folder, caplog):
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    with caplog.at_level(logging.WARNING):
        assert drafter_method(str(folder), TARGET) == "draft_model"
    assert "draft_method" in caplog.text
    assert str(folder) in caplog.text
    named = folder.rename(tmp_path / "EAGLE3-of-mine")
    caplog.clear()
    assert drafter_method(str(named), TARGET) == "eagle3"
    assert not caplog.text
