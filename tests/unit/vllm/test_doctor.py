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
def bare(monkeypatch):
    """An environment without vLLM and torch."""
    for name in ("vllm", "torch"):
        monkeypatch.setitem(sys.modules, name, None)


def found(**asked):
    return {each.part: each for each in doctor.examine(**asked)}


def test_without_vllm_the_exit_code_is_2_and_every_part_says_what_to_do(bare, capsys):
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


def test_a_policy_that_cannot_be_read_is_named(bare):
    assert "polcy" in found(policy="polcy")["policy"].found
    assert "for replays alone" in found(policy="ema")["policy"].found
    assert not found(policy="fixed:neurl:3")["policy"].ok
    assert found(policy="fixed:neural:3")["policy"].ok


@pytest.mark.parametrize(
    ("forced", "cpu", "expected"),
    [
        (None, False, "V2, asynchronous"),
        (None, True, "V1, synchronous: vLLM has V2 on accelerators alone"),
        ("0", False, "V1, synchronous: VLLM_USE_V2_MODEL_RUNNER=0"),
        ("no", False, "set it to 0 or 1"),
    ],
)
def test_the_runner_is_named_with_the_reason(bare, monkeypatch, forced, cpu, expected):
    monkeypatch.setattr(doctor, "_on_cpu", lambda: cpu)
    lacks = []
    monkeypatch.setattr(
        "adaspec.vllm.compatibility.signature_problems", lambda *_, **__: iter(lacks)
    )
    if forced is None:
        monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    else:
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", forced)
    assert expected in found()["runner"].found
    if expected.startswith("V2"):
        lacks.append("propose is missing")
        finding = found()["runner"]
        assert "propose is missing" in finding.found
        assert "VLLM_USE_V2_MODEL_RUNNER=0" in finding.advice


def test_plugins_that_leave_adaspec_out_are_named(bare, monkeypatch):
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
def no_vllm(monkeypatch):
    """An environment without vLLM; transformers, once it has seen torch, cannot do without it."""
    monkeypatch.setitem(sys.modules, "vllm", None)


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
    for missing in (str(tmp_path / "nowhere"), str(tmp_path / "empty")):
        finding = found(model=missing)["model"]
        assert not finding.ok
        assert missing in finding.found
        assert finding.advice
    config = json.loads((model / "config.json").read_text())
    other = {"is_encoder_decoder": True, "architectures": ["T5ForConditionalGeneration"]}
    (model / "config.json").write_text(json.dumps(config | other))
    finding = found(model=str(model))["model"]
    assert not finding.ok
    assert "T5ForConditionalGeneration" in finding.found
    (model / "config.json").write_text(json.dumps(config))
    for file in model.glob("tokenizer*"):
        file.write_text("{")
    finding = found(model=str(model))["model"]
    assert not finding.ok
    assert f"tokenizer '{model}' cannot be read" in finding.found


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
    (tmp_path / "read_pack" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "read_pack" / "deep" / "__init__.py").write_text(
        "from ..base import Base as Base\n"
    )
    (tmp_path / "read_pack" / "base.py").write_text(
        "class Base:\n    one: int\n    def run(self, batch, *, warm=True): ...\n"
    )
    (tmp_path / "read_pack" / "mine.py").write_text(
        "try:\n    from read_pack.deep import Base\nexcept ImportError:\n    pass\n"
        "class Mine(Base):\n    two: int = 0\n"
    )
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
