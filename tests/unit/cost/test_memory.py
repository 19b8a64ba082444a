"""The memory of models and drafters from their shapes."""

import json
import math
from pathlib import Path

import pytest

from adaspec.cli.main import run
from adaspec.cost.memory import (
    DRAFT_MODEL,
    EAGLE,
    EAGLE3,
    MODELS,
    drafter_method,
    drafter_weights_bytes,
    load_shapes,
    memory,
    usual_heads,
)
from adaspec.errors import CostError

GIB, KIB = 2**30, 2**10
PAIR = Path(__file__).resolve().parents[3] / "training" / "reference_pair"
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "rope_theta": 500000.0,
}


def found(target, drafters):
    """GiB of weights and KiB per token, by drafter."""
    return {
        row.drafter: (row.weights_bytes / GIB, row.kv_bytes_per_token / KIB)
        for row in memory(target, drafters)
    }


def write_config(folder, **changes):
    config = {key: value for key, value in {**LLAMA, **changes}.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# Table 2 of arXiv 2601.11580.


def test_llama_8b_and_its_heads_take_what_the_paper_says():
    rows = found(MODELS["llama-3.1-8b"], usual_heads(MODELS["llama-3.1-8b"]))
    assert rows["none"] == (pytest.approx(14.96, abs=0.005), 128)
    assert rows[EAGLE] == (pytest.approx(15.43, abs=0.005), 132)
    assert rows[EAGLE3] == (pytest.approx(15.75, abs=0.005), 132)


def test_llama_70b_takes_what_the_paper_says():
    assert found(MODELS["llama-3-70b"], {})["none"] == (pytest.approx(131.4, abs=0.05), 320)


def test_qwen_8b_takes_what_the_paper_says_to_a_hundredth():
    # 15.256, which the paper has as 15.25.
    assert found(MODELS["qwen3-8b"], {})["none"] == (pytest.approx(15.25, abs=0.01), 144)


def test_a_draft_model_multiplies_the_kv_cache_as_the_paper_says():
    # 1.777, which the paper has as 1.77.
    rows = found(MODELS["qwen3-8b"], {DRAFT_MODEL: MODELS["qwen3-0.6b"]})
    assert rows[DRAFT_MODEL][1] / rows["none"][1] == pytest.approx(1.77, abs=0.01)


def test_a_tied_lm_head_is_counted_once():
    assert MODELS["qwen3-0.6b"].weights_bytes / 2 == pytest.approx(596_049_920, rel=1e-4)


@pytest.mark.parametrize("method", [EAGLE, EAGLE3])
def test_a_heads_weights_are_those_of_its_file(method):
    if not PAIR.is_dir():
        pytest.skip("training/ is not here: a source distribution leaves it out")
    content = (PAIR / method / "model.safetensors").read_bytes()
    tensors = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    stored = sum(
        2 * math.prod(tensor["shape"])
        for tensor in tensors.values()
        if tensor.get("dtype") == "BF16"
    )
    head = load_shapes(PAIR / method)
    assert drafter_method(head) == method
    assert drafter_weights_bytes(method, head, head) == stored


def test_a_config_is_read_from_its_folder_and_by_its_own_path(tmp_path):
    folder = write_config(tmp_path)
    assert load_shapes(folder) == MODELS["llama-3.1-8b"]
    assert load_shapes(folder / "config.json") == MODELS["llama-3.1-8b"]


def test_what_a_config_may_leave_out_is_what_transformers_takes(tmp_path):
    shapes = load_shapes(
        write_config(tmp_path, num_key_value_heads="absent", torch_dtype="float32")
    )
    assert (shapes.num_key_value_heads, shapes.head_dim) == (32, 128)
    assert shapes.kv_bytes_per_token == 2 * 32 * 4096 * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mixtral"}, "model_type is 'mixtral', not one of llama"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is an object of 1 keys"),
        ({"hidden_size": "absent"}, "hidden_size is None, not a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"torch_dtype": "int8"}, "dtype is 'int8', not one of bfloat16"),
        ({"torch_dtype": ["x"]}, r"dtype is \['x'\]"),
        ({"architectures": 3}, "architectures is 3"),
    ],
)
def test_a_config_whose_memory_cannot_be_told_is_refused(tmp_path, changes, message):
    with pytest.raises(CostError, match=message):
        load_shapes(write_config(tmp_path, **changes))


@pytest.mark.parametrize("text", ["[]", "{", '{"model_type": "llama", "model_type": "x"}'])
def test_a_file_that_is_no_config_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CostError, match=r"config\.json: .*: give a model's folder"):
        load_shapes(tmp_path)


def test_a_head_of_another_width_is_refused():
    with pytest.raises(CostError, match="hidden_size is 8192 and its target's 4096"):
        memory(MODELS["llama-3.1-8b"], usual_heads(MODELS["llama-3-70b"]))


def test_the_command_prints_each_drafter_with_what_it_adds(capsys):
    assert run(["estimate", "memory", "llama-3.1-8b"]) == 0
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split() for row in rows] == [
        ["none,", "n-gram", "14.96", "0.0%", "128", "0.0%"],
        ["eagle", "15.43", "3.1%", "132", "3.1%"],
        ["eagle3", "15.75", "5.3%", "132", "3.1%"],
    ]


def test_the_commands_json_holds_bytes(capsys):
    assert run(["estimate", "memory", "qwen3-8b", "--draft", "qwen3-0.6b", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["model"]) == (1, "qwen3-8b")
    assert [row["drafter"] for row in document["rows"]] == ["none", DRAFT_MODEL]
    assert [row["kv_bytes_per_token"] for row in document["rows"]] == [144 * KIB, 256 * KIB]


def test_a_head_that_does_not_say_what_it_is_has_to_be_told(tmp_path, capsys):
    head = str(write_config(tmp_path, num_hidden_layers=1, architectures=["LlamaForCausalLM"]))
    assert run(["estimate", "memory", "llama-3.1-8b", "--draft", head]) == 2
    assert "--draft-method" in capsys.readouterr().err
    words = ["estimate", "memory", "llama-3.1-8b", "--draft", head, "--draft-method", "eagle"]
    assert run(words) == 0
    assert "15.43" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama3.1-8b"], "did you mean 'llama-3.1-8b'?"),
        (["llama-3.1-8b", "--draft-method", "eagle"], "says what --draft is"),
    ],
)
def test_a_mistake_is_said_in_one_line(capsys, words, message):
    assert run(["estimate", "memory", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
