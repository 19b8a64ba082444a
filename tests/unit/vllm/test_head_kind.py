"""A folder that is named must be there: vLLM would look for it on the hub, for minutes.

A head's config, or its name, says by which of vLLM's methods it drafts.
"""

import json

import pytest

from adaspec.errors import ServingError
from adaspec.vllm.choice import Target
from adaspec.vllm.head_kind import check_there, drafter_method, tokens_of_pass

TARGET = Target("org/target", vocabulary=100, width=64, tokenizer="org/target")


def test_a_folder_that_does_not_exist_is_named_and_a_hub_id_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "there").mkdir(parents=True)
    for model in ("models/gone", "./gone", "../gone", "/gone", "~/gone", "a/b/gone"):
        with pytest.raises(ServingError, match=f"drafter '{model}': there is no such folder"):
            check_there("drafter", model)
    for model in ("models/there", "org/gone", "gone", "s3://a/b/c", "a/b/c.gguf"):
        check_there("drafter", model)


@pytest.mark.parametrize(
    ("name", "config", "method", "tokens"),
    [
        ("a", {"architectures": ["DFlashDraftModel"], "block_size": 16}, "dflash", 15),
        ("a", {"architectures": ["DFlash2DraftModel"]}, "dflash", None),
        ("a", {"architectures": ["LiLiCorrDraftModel"]}, "dflash", None),
        ("a", {"architectures": ["MuseGlimmerAssistantModel"]}, "dflash", None),
        ("a", {"speculators_model_type": "dflash2", "block_size": 8}, "dflash", 7),
        ("a", {"speculators_model_type": "dspark", "block_size": 8}, "dspark", 7),
        ("a", {"architectures": ["Qwen3DSparkModel"], "block_size": 7}, "dspark", 7),
        ("a", {"architectures": ["Gemma4DSparkModel"], "dspark_block_size": 6}, "dspark", 6),
        ("Qwen3-DFlash-b16", {"architectures": ["Qwen3ForCausalLM"]}, "dflash", None),
        ("dspark-b7", {"architectures": ["Qwen3ForCausalLM"]}, "dspark", None),
        ("a", {"architectures": ["Qwen3ForCausalLM"]}, "draft_model", None),
        ("a", {"architectures": ["Eagle3LlamaForCausalLM"]}, "eagle3", None),
    ],
)
def test_a_head_is_recognised_and_what_it_drafts_in_one_pass(
    tmp_path, name, config, method, tokens
):
    pytest.importorskip("transformers", reason="transformers is not installed")
    head = tmp_path / name
    head.mkdir()
    record = {"vocab_size": 100, "hidden_size": 64, "model_type": "qwen3", **config}
    (head / "config.json").write_text(json.dumps(record))
    assert drafter_method(str(head), TARGET) == method
    assert tokens_of_pass(str(head), None, method) == tokens
    if method in ("dflash", "dspark"):
        with pytest.raises(ServingError, match="reads hidden states of 64, the target's are of 8"):
            drafter_method(str(head), Target("t", vocabulary=100, width=8, tokenizer="t"))
    with pytest.raises(ServingError, match="its vocabulary has 100 tokens"):
        drafter_method(str(head), Target("t", vocabulary=9, width=64, tokenizer="t"))
