import json
import shutil

import pytest
import refusals

from adaspec.errors import AdaspecError
from adaspec.vllm.doctor import examine

HEAD = {"model": "eagle"}


def configured(models, config, **arguments):
    """The config of an engine with method 'adaspec', and this head, which may be named."""
    from vllm.engine.arg_utils import EngineArgs

    from adaspec.vllm.plugin import register

    register()
    config = {"method": "adaspec", **config}
    if "model" in config:
        config["model"] = str(models / config["model"])
    arguments = {"dtype": "float32", "max_model_len": 384, **arguments}
    args = EngineArgs(str(models / "target"), speculative_config=config, **arguments)
    return args.create_engine_config()


def refusal(models, config, **arguments):
    return refusals.refusal(AdaspecError, configured, models, config, **arguments)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({**HEAD, "draft_sample_method": "probabilistic"}, "draft_sample_method"),
        ({"model": "/no/such/head"}, "drafter '/no/such/head': there is no such folder"),
        ({"policy": "fixed:neural:3"}, "neural drafter"),
        ({"trace_dir": "/proc/nowhere"}, "/proc/nowhere"),
    ],
)
def test_a_wrong_word_is_named(models, config, says):
    assert says in refusal(models, config)


def test_the_doctor_finds_all_well_and_names_what_would_serve(models):
    findings = examine(model=str(models / "target"), draft=str(models / "eagle"))
    assert [each.part for each in findings] == ["adaspec", "vllm", "plug-in", "runner", "model"]
    assert all(each.ok for each in findings), findings
    assert "eagle' as eagle is served by policy 'general'" in findings[-1].found


def test_a_head_of_another_width_or_vocabulary_or_a_strange_config_is_refused(models, tmp_path):
    for key, value in (("hidden_size", 96), ("vocab_size", 64)):
        record = json.loads((models / "eagle" / "config.json").read_text())
        record[key] = value
        (tmp_path / "config.json").write_text(json.dumps(record))
        line = refusal(models, {"model": tmp_path})
        assert "does not fit" in line
        assert str(value) in line
    (tmp_path / "config.json").write_text('{"architectures": 5, "model_type": ["x"]}')
    assert str(tmp_path) in refusal(models, {"model": tmp_path})


def test_what_cannot_be_served_together_is_refused(models, monkeypatch):
    assert "async" in refusal(models, HEAD, async_scheduling=True)
    stages = {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}
    assert "tensor parallel" in refusal(models, HEAD, **stages)
    with monkeypatch.context() as patch:
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
        assert "VLLM_USE_V2_MODEL_RUNNER" in refusal(models, HEAD)
    monkeypatch.setattr("adaspec.vllm.configuration.installed_version", lambda: "0.99.1")
    assert "vLLM 0.99.1 is not supported" in refusal(models, HEAD)


def test_a_model_in_a_folder_of_another_name_has_the_same_vocabulary(models, tmp_path):
    from vllm.engine.arg_utils import EngineArgs

    from adaspec.vllm.configuration import vocabulary_of

    shutil.copytree(models / "target", tmp_path / "copy")
    found = [
        vocabulary_of(EngineArgs(str(path), dtype="float32").create_model_config())
        for path in (models / "target", tmp_path / "copy")
    ]
    assert found[0] == found[1] is not None
    bare = EngineArgs(str(models / "target"), dtype="float32", skip_tokenizer_init=True)
    assert vocabulary_of(bare.create_model_config()) is None


def test_mode_off_is_no_speculation(models):
    assert configured(models, {"mode": "off"}).speculative_config is None


def test_vllm_verifies_drafts_as_long_as_adaspec_makes_them():
    from vllm.v1.sample.rejection_sampler import MAX_SPEC_LEN

    from adaspec.vllm.options import MAX_VERIFIED

    assert MAX_VERIFIED <= MAX_SPEC_LEN


def test_a_head_of_the_first_format_is_what_its_user_or_its_name_says(models, tmp_path):
    """As the first heads were: a Llama's config, which does not tell."""
    folder = tmp_path / "mine"
    shutil.copytree(models / "eagle", folder)
    record = json.loads((folder / "config.json").read_text())
    record |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(record))
    told = {"model": folder, "draft_method": "eagle"}
    named = {"model": tmp_path / "EAGLE-of-mine"}
    shutil.copytree(folder, named["model"])
    made = [
        configured(models, each).speculative_config for each in (told, {"model": folder}, named)
    ]
    assert [each.method for each in made] == ["eagle", "draft_model", "eagle"]
    assert made[0].draft_model_config.architectures == ["EagleLlamaForCausalLM"]


def test_a_head_of_one_pass_is_refused_on_v1(models):
    line = refusal(models, {"model": "dspark"})
    assert "drafts all its tokens in one pass (dspark), which method 'adaspec' serves on" in line
    assert line.endswith("and here V1 serves: vLLM has V2 on accelerators alone")


def test_a_draft_model_that_vllm_takes_for_a_head_is_refused(models, tmp_path):
    folder = tmp_path / "eagle-and-others" / "draft"
    shutil.copytree(models / "draft", folder)
    line = refusal(models, {"model": str(folder), "draft_method": "draft_model"})
    assert "is for method 'draft_model', and vLLM takes it for 'eagle' by its name" in line
