"""Whatever is missing is said with what to do, and hides nothing else."""

import dataclasses
import importlib.metadata
import json
import subprocess
import sys

import pytest

from adaspec.cli.main import run
from adaspec.vllm import doctor
from adaspec.vllm.compatibility import signature_problems
from adaspec.vllm.source import parameters_in_source


@pytest.fixture
def no_vllm(monkeypatch):
    """An environment without vLLM; transformers, once it has seen torch, cannot do without it."""
    monkeypatch.setitem(sys.modules, "vllm", None)


def found(**asked):
    return {each.part: each for each in doctor.examine(**asked)}


def test_without_vllm_the_exit_code_is_2_and_every_part_says_what_to_do(
    no_vllm, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(["doctor", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    parts = {each["part"]: each for each in document["findings"]}
    assert parts["python"]["ok"] and parts["adaspec"]["ok"] and parts["policy"]["ok"]
    for name in ("torch", "vllm", "patches"):
        assert not parts[name]["ok"]
    assert all(each["advice"] for each in parts.values() if not each["ok"])
    assert "pip install" in parts["vllm"]["advice"]


def test_an_adaspec_that_is_not_whole_is_named_and_nobody_else_is_blamed():
    code = (
        "import json, sys\n"
        "sys.modules.update(dict.fromkeys(('numba', 'torch', 'vllm')))\n"
        "from adaspec.vllm import doctor\n"
        "print(json.dumps([[each.part, each.ok, each.advice] for each in doctor.examine()]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    parts = {part: (ok, advice) for part, ok, advice in json.loads(done.stdout.splitlines()[-1])}
    assert "install adaspec again" in parts["adaspec"][1]
    # The others are looked at without adaspec's own parts.
    assert parts["policy"] == (False, "not looked at: mend 'adaspec' first")


def test_a_policy_that_cannot_be_read_is_named(no_vllm):
    assert "polcy" in found(policy="polcy")["policy"].found
    assert "for replays alone" in found(policy="budget")["policy"].found
    assert not found(policy="fixed:neurl:3")["policy"].ok
    assert found(policy="fixed:neural:3")["policy"].ok


def test_the_runner_is_named_with_the_reason(no_vllm, monkeypatch):
    lacks = []
    problems = "adaspec.vllm.compatibility.signature_problems"
    monkeypatch.setattr(problems, lambda *_, **__: iter(lacks))
    monkeypatch.setattr(doctor, "_on_cpu", lambda: False)
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    assert found()["runner"].found.startswith("V2, asynchronous")
    lacks.append("propose is missing")
    finding = found()["runner"]
    assert "propose is missing" in finding.found
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in finding.advice
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    assert found()["runner"].found == "V1, synchronous: VLLM_USE_V2_MODEL_RUNNER=0"
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "no")
    assert not found()["runner"].ok


def test_plugins_that_leave_adaspec_out_are_named(no_vllm, monkeypatch):
    point = importlib.metadata.EntryPoint(
        "adaspec", "adaspec.vllm.plugin:register", "vllm.general_plugins"
    )
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [point])
    assert found()["plug-in"].ok
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    assert "VLLM_PLUGINS=other" in found()["plug-in"].found
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [])
    assert "pip install" in found()["plug-in"].advice


@pytest.fixture
def model(tmp_path):
    """A small Llama's config and tokenizer, in a folder called for the shipped policy's target."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    folder = tmp_path / "SmolLM2-135M-Instruct"
    transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, architectures=["LlamaForCausalLM"]
    ).save_pretrained(folder)
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "a": 1}, "<s>"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)
    return folder


def test_a_model_is_looked_at_and_the_policy_that_would_serve_it_is_named(no_vllm, model):
    assert "--model" in found(draft="x")["head"].advice
    parts = found(model=str(model))
    assert parts["model"].ok
    assert "head" not in parts
    assert "LlamaForCausalLM with 128 tokens" in parts["model"].found
    assert "without a head it is served by 'general' (for any model" in parts["model"].found


def test_a_model_that_cannot_be_served_is_named(no_vllm, model, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()

    def said(of):
        finding = found(model=str(of))["model"]
        assert not finding.ok
        assert finding.advice
        return finding.found

    for missing in (tmp_path / "nowhere", tmp_path / "empty"):
        assert str(missing) in said(missing)
    config = json.loads((model / "config.json").read_text())
    other = {"is_encoder_decoder": True, "architectures": ["T5ForConditionalGeneration"]}
    (model / "config.json").write_text(json.dumps(config | other))
    assert "T5ForConditionalGeneration" in said(model)
    (model / "config.json").write_text(json.dumps(config))
    for file in model.glob("tokenizer*"):
        file.write_text("{")
    assert f"tokenizer '{model}' cannot be read" in said(model)


def test_a_policy_whose_vocabulary_has_only_the_models_size_is_a_warning(
    no_vllm, model, monkeypatch, capsys
):
    from adaspec.vllm import choice

    loaded = choice.load_policy("reference-pair-cpu")
    for known, warns in (("2", True), ("128256", False)):
        manifest = dataclasses.replace(loaded.manifest, tokenizer="other", vocabulary_hash=known)
        monkeypatch.setattr(loaded, "manifest", manifest)
        monkeypatch.setattr(choice, "load_policy", lambda _: loaded)
        finding = found(model=str(model), policy="reference-pair-cpu")["model"]
        assert (finding.ok, finding.warn) == (warns, warns)
        assert ("size alone" if warns else "another vocabulary") in finding.found
        assert finding.advice
        run(["doctor", "--model", str(model), "--policy", "reference-pair-cpu"])
        assert f"{'warn' if warns else 'not '} model: " in capsys.readouterr().out


def test_a_package_is_read_and_not_imported(tmp_path, monkeypatch):
    (tmp_path / "read_pack" / "deep").mkdir(parents=True)
    for name, source in {
        "__init__": "raise SystemExit('imported')",
        "deep/__init__": "from ..base import Base as Base\n",
        "base": "class Base:\n    one: int\n    def run(self, batch, *, warm=True): ...\n",
        "mine": "try:\n    from read_pack.deep import Base\nexcept ImportError:\n    pass\n"
        "class Mine(Base):\n    two: int = 0\n",
    }.items():
        (tmp_path / "read_pack" / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    needed = {
        "read_pack.mine:Mine.__init__": ("one", "two", "three"),
        "read_pack.mine:Mine.run": ("batch", "warm", "cold"),
        "read_pack.mine:Mine.two": (),
        "read_pack.mine:Mine.gone": (),
        "read_pack.gone:Mine.run": (),
    }
    assert list(signature_problems(needed, parameters_in_source)) == [
        "read_pack.mine.Mine.__init__ lacks the parameter three",
        "read_pack.mine.Mine.run lacks the parameter cold",
        "read_pack.mine.Mine.gone is missing",
        "read_pack.gone.Mine.run is missing",
    ]
