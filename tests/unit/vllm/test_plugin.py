"""The plug-in's own module: standard library alone, and harmless where nobody asks for it.

Whatever of vLLM is patched, called or read is looked at before anything is served.
"""

import os
import sys
import types

import pytest
from refusals import refusal

from adaspec.errors import ServingError
from adaspec.vllm import compatibility, patching, plugin
from adaspec.vllm.compatibility import check_functions


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "watched_module.py").write_text("class Thing:\n    def name(self): return 'old'\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "watched_module"
    sys.modules.pop("watched_module", None)
    sys.meta_path[:] = [
        each for each in sys.meta_path if getattr(each, "name", "") != "watched_module"
    ]


def test_a_module_is_patched_as_it_is_imported_and_not_before(module):
    seen = []
    plugin.when_imported(module, lambda found: seen.append(found.Thing().name()))
    plugin.when_imported(module, lambda found: seen.append("twice"))
    assert seen == []
    __import__(module)
    assert seen == ["old"]
    plugin.when_imported(module, seen.append)
    assert seen == ["old", sys.modules[module]]


def patched(config):
    """A module of vLLM's, patched, whose engines have this config."""

    class EngineArgs:
        def __init__(self):
            self.speculative_config = config

        def create_speculative_config(self, target_model_config, target_parallel_config):
            return "vLLM's own"

    module = types.SimpleNamespace(EngineArgs=EngineArgs)
    plugin.patch(patching.ENGINE_ARGS, module)
    return module


@pytest.mark.parametrize("config", [None, {"method": "ngram"}, {"model": "x"}])
def test_an_adaspec_that_is_broken_is_loud_where_it_is_asked_for_alone(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "adaspec.vllm.configuration", None)
    made = patched(config).EngineArgs()
    assert made.create_speculative_config(None, None) == "vLLM's own"
    made.speculative_config = {"method": "adaspec"}
    with pytest.raises(ImportError, match=r"method 'adaspec' was asked for.*adaspec doctor"):
        made.create_speculative_config(None, None)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({patching.V2_VARIABLE: "0", patching.FORCED_VARIABLE: "1"}, {}),
        ({patching.V2_VARIABLE: "0"}, {patching.V2_VARIABLE: "0"}),  # the user's own
        ({patching.V2_VARIABLE: "1"}, {patching.V2_VARIABLE: "1"}),
        ({}, {}),
    ],
)
def test_an_engine_after_ours_chooses_its_model_runner_itself(before, after, monkeypatch):
    names = (patching.V2_VARIABLE, patching.FORCED_VARIABLE)
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    patched(None).EngineArgs().create_speculative_config(None, None)
    assert {name: os.environ[name] for name in names if name in os.environ} == after


def test_nothing_is_patched_twice_and_what_is_not_there_not_at_all():
    module = patched(None)
    once = module.EngineArgs.create_speculative_config
    plugin.patch(patching.ENGINE_ARGS, module)
    assert module.EngineArgs.create_speculative_config is once
    plugin.patch(patching.ENGINE_ARGS, types.SimpleNamespace())
    plugin.patch(patching.SERVE_COMMAND, types.SimpleNamespace(ServeSubcommand=None))


def test_a_patch_that_fails_leaves_the_module_as_vllm_made_it(module, caplog, monkeypatch):
    plugin.when_imported(module, lambda _: 1 / 0)
    assert __import__(module).Thing().name() == "old"
    assert "did not load" in caplog.text
    monkeypatch.setattr(plugin, "when_imported", lambda *_: 1 / 0)
    plugin.register()


def test_vllm_serve_ends_in_one_line_where_adaspec_refuses(capsys, tmp_path, monkeypatch):
    started = []

    class ServeSubcommand:
        @staticmethod
        def cmd(args):
            started.append(args)
            if args.model == "late":
                raise ServingError("refused later")

    plugin.patch(patching.SERVE_COMMAND, types.SimpleNamespace(ServeSubcommand=ServeSubcommand))
    monkeypatch.chdir(tmp_path)

    def line(model="M", **config):
        args = types.SimpleNamespace(model=model, speculative_config=config)
        with pytest.raises(SystemExit) as caught:
            ServeSubcommand().cmd(args)
        assert caught.value.code == 2
        return capsys.readouterr().err

    assert "did you mean 'model'" in line(method="adaspec", modle="x")
    assert "model './gone': there is no such folder" in line("./gone", method="adaspec")
    assert "./gone: neither a folder nor a shipped" in line(method="adaspec", policy="./gone")
    assert not started
    assert line("late", method="adaspec") == "adaspec: error: refused later\n"
    ServeSubcommand().cmd(types.SimpleNamespace(model="./gone", speculative_config=None))
    assert len(started) == 2


def test_whatever_is_patched_is_looked_at():
    tables = (
        compatibility.FUNCTIONS_V1,
        compatibility.FUNCTIONS_V2,
        compatibility.FUNCTIONS_OF_SERVERS,
    )
    looked_at = {path for table in tables for path in table}
    looked_at |= {
        f"{path}.{name}" for table in tables for path in table for name in table[path].split()
    }
    patched = {f"{module}:{name}" for module, names in plugin.PATCHES.items() for name in names}
    manager = f"{patching.RUNNER_V2}:maybe_create_adaptive_verification_manager"
    assert manager in patched  # it is looked at where it is defined
    assert patched - looked_at == {manager}


@pytest.mark.parametrize(
    ("functions", "says"),
    [
        ({"json:dumps": "obj indent", "json:JSONEncoder.encode": ""}, None),
        ({"json:dumps": "obj gap"}, "json.dumps lacks gap"),
        ({"json.gone:dumps": ""}, "json.gone.dumps is missing"),
        ({"json:JSONEncoder": "item_separator default indent"}, None),
        ({"json:JSONEncoder": "indent gap"}, "json.JSONEncoder lacks gap"),
    ],
)
def test_what_is_otherwise_is_named_as_the_server_starts(monkeypatch, functions, says):
    monkeypatch.setattr(compatibility, "installed_version", lambda: "0.40.0")
    if says is None:
        check_functions(functions)
        return
    line = refusal(ServingError, check_functions, functions)
    assert line.startswith(f"vLLM 0.40.0 is not as adaspec knows it: {says}")
