import json
import os

import pytest
from msgspec import structs
from policy_fakes import manifest, written
from random_models import random_model
from refusals import refusal

from adaspec.cost.load import DEFAULT, H100_LLAMA_3_1_8B, cost_document, save_cost
from adaspec.errors import ServingError
from adaspec.policy.artifact import GENERAL
from adaspec.policy.static import StaticRule
from adaspec.predict.features import FEATURES_VERSION
from adaspec.vllm import choice
from adaspec.vllm.choice import Target, baseline_of, check_made_for, choose, named_policy, runner_of
from adaspec.vllm.configuration import hardware
from adaspec.vllm.head_kind import check_there, drafter_method, tokens_of_pass
from adaspec.vllm.options import Options
from adaspec.vllm.patching import V2_VARIABLE

MINE, OTHER = "128-" + "a" * 16, "49152-" + "b" * 16


def target(name="org/model", vocabulary_hash=None):
    return Target(name, 128, 64, tokenizer=name, vocabulary_hash=vocabulary_hash)


def made_for(name, vocabulary_hash=None):
    return manifest(tokenizer=name, target=name, vocabulary_hash=vocabulary_hash)


@pytest.mark.parametrize("name", ["org/model", "elsewhere/model"])
@pytest.mark.parametrize(("theirs", "size"), [(OTHER, "49,152"), ("128256", "128,256")])
def test_a_policy_of_another_vocabulary_is_refused_by_whatever_name(name, theirs, size):
    asked = "mine", made_for(name, theirs), target("org/model", MINE)
    line = refusal(ServingError, check_made_for, *asked)
    assert f"{size} tokens of tokenizer '{name}' ({theirs})" in line
    assert f"128 tokens of 'org/model' ({MINE})" in line


@pytest.mark.parametrize(
    ("theirs", "ours", "is_known"),
    [(MINE, MINE, True), (None, MINE, False), (MINE, None, False), ("128", MINE, False)],
)
def test_a_vocabulary_that_is_not_wholly_known_is_a_doubt_where_names_differ(
    theirs, ours, is_known
):
    doubt = check_made_for("mine", made_for("org/model", theirs), target("elsewhere/copy", ours))
    assert ("nobody knows whether" in doubt) != is_known
    for made, name in (("org/model", "org/model"), ("org/model", "a/model"), (None, "org/model")):
        assert check_made_for("mine", made_for(made, theirs), target(name, ours)) == ""


def test_a_shipped_policy_of_another_vocabulary_is_no_default(tmp_path, monkeypatch):
    model = random_model(0, evidence=False)
    arrays = {"networks": model.network_arrays(), "tables": model.table_arrays()}
    trained = {"cap": 24, "evidence": (), "features": FEATURES_VERSION}
    for vocabulary_hash, is_default in ((MINE, True), (None, True), (OTHER, False)):
        own = structs.replace(made_for("org/model", vocabulary_hash), **trained)
        folder = str(written(tmp_path / "mine", force=True, manifest=own, **arrays))
        known = {folder: folder, GENERAL: folder}
        monkeypatch.setattr(choice, "shipped_policies", lambda known=known: known)
        chosen = choose(Options(), target("org/model", MINE), method="eagle3")
        assert chosen.policy == (folder if is_default else GENERAL)


@pytest.mark.parametrize(
    ("method", "policy", "says"),
    [
        ("eagle", "llama-3.1-8b-instruct-h100", "shipped for"),
        (None, "llama-3.1-8b-instruct-h100", "shipped for"),
        ("eagle3", GENERAL, "'llama-3.1-8b-instruct-h100' was made with EAGLE"),
    ],
)
def test_a_shipped_policy_of_another_kind_of_head_is_no_default(method, policy, says):
    chosen = choose(Options(), target("meta-llama/Llama-3.1-8B-Instruct", None), method)
    assert chosen.policy == policy
    assert says in chosen.policy_why
    with pytest.raises(ServingError, match="num_speculative_tokens=64 is beyond the cap of policy"):
        choose(Options(num_speculative_tokens=64), target(), method)


def test_who_chose_the_policy_is_said_and_costs_are_measured_where_it_weighs_them():
    for asked, why, measures in (
        (Options(), "for any model: none was made for org/model", True),
        (Options(cost=DEFAULT), "for any model: none was made for org/model", False),
        (Options(policy="none"), "asked for", False),
    ):
        chosen = choose(asked, target(), method=None)
        assert (chosen.policy_why, chosen.measures, chosen.cost) == (why, measures, DEFAULT)


def test_a_policy_trained_under_costs_of_ones_own_brings_them_along(monkeypatch, tmp_path):
    own = structs.replace(H100_LLAMA_3_1_8B, name="my machine", context_s=0.5)
    policy = named_policy("llama-3.1-8b-instruct-h100")
    policy.manifest = structs.replace(
        policy.manifest, cost=own.name, step_costs=cost_document(own), tokenizer=None, target=None
    )
    monkeypatch.setattr(choice, "named_policy", lambda text: policy)
    found = choose(Options(policy="mine"), target(), method="eagle3")
    assert (found.costs, found.cost) == (cost_document(own), "my machine")
    asked = tmp_path / "asked.json"
    save_cost(H100_LLAMA_3_1_8B, asked)
    found = choose(Options(policy="mine", cost=str(asked)), target(), method="eagle3")
    assert (found.costs, found.cost) == (cost_document(H100_LLAMA_3_1_8B), str(asked))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        *((f"{each}:3", StaticRule(neural_len=3)) for each in ("eagle", "eagle3", "mtp", "dflash")),
        ("draft_model:2", StaticRule(neural_len=2)),
        ("ngram:5", StaticRule(min_match=3, ngram_len=5)),
        ("ngram:5:2", StaticRule(min_match=2, ngram_len=5)),
        ("hybrid-splice:4:20:2:3:5", StaticRule(4, 20, 2, 3, 5)),
    ],
)
def test_a_baseline_is_named_as_vllm_names_it_or_by_its_spec(text, rule):
    assert baseline_of(text).rule == rule
    method = text.partition(":")[0] if text[0] in "edm" else "eagle"
    assert choose(Options(baseline=text), target(), method).baseline == text


@pytest.mark.parametrize(
    ("text", "method", "cap", "says"),
    [
        ("eagle:3", None, None, 'drafts with a neural drafter, and no "model" is given'),
        ("hybrid:4:16:3", None, None, "drafts with a neural drafter"),
        ("eagle:3", "mtp", None, "the head drafts as mtp: write mtp:3"),
        ("ngram:9", None, 8, "up to 9 tokens, and this engine at most 8: give a shorter one"),
        ("eagle", "eagle", None, "write eagle:3 or ngram:5"),
        ("eagle:x", "eagle", None, "K is 'x', not a whole number"),
        ("eagle:900", "eagle", None, "more than a server does"),
        ("budget:5", "eagle", None, "is no static rule"),
        (GENERAL, "eagle", None, "no static rule that drafts"),
    ],
)
def test_a_baseline_that_an_engine_cannot_run_is_refused_in_one_line(text, method, cap, says):
    asked = Options(baseline=text, num_speculative_tokens=cap), target(), method
    assert says in refusal(ServingError, choose, *asked)


@pytest.mark.parametrize(
    ("wanted", "on_cpu", "why_v1", "runner", "says"),
    [
        (None, True, "", "V1", "accelerators"),
        (None, False, "vLLM has chosen it", "V1", "has chosen it"),
        ("0", False, "", "V1", f"{V2_VARIABLE}=0"),
        ("1", True, "", "V2", ""),
        ("1", False, "LoRA adapters", None, f"{V2_VARIABLE}=1 here: LoRA adapters: unset it"),
        ("yes", False, "", None, "vLLM reads a number there"),
    ],
)
def test_which_model_runner_serves_is_said_or_refused(
    monkeypatch, wanted, on_cpu, why_v1, runner, says
):
    monkeypatch.delenv(V2_VARIABLE, raising=False)
    if wanted is not None:
        monkeypatch.setenv(V2_VARIABLE, wanted)
    if runner is None:
        with pytest.raises(ServingError, match=says):
            runner_of(on_cpu, why_v1)
        return
    found, why = runner_of(on_cpu, why_v1)
    assert found == runner
    assert says in why and bool(says) == bool(why)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be bound here")
def test_hardware_stays_the_same_when_a_worker_binds_itself_to_one_core():
    free, before = os.sched_getaffinity(0), hardware()
    try:
        os.sched_setaffinity(0, {min(free)})
        assert hardware() == before
    finally:
        os.sched_setaffinity(0, free)


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
