"""A plug-in that is broken leaves vLLM as it is; each of these really starts it."""

import subprocess
import sys

import pytest
from live_server import CHECKOUT, PATIENCE_S, Server, environment_with_entry_point

CONFIG = '{"method": "adaspec"}'
SAID = {
    "the package cannot be imported": "Failed to load plugin adaspec",
    "numba is missing": "cannot be imported whole (ModuleNotFoundError: No module named 'numba')",
    "registering fails": "adaspec's plug-in did not load",
    "a patch fails": "adaspec's plug-in did not load",
}
BREAKAGES = {
    "the package cannot be imported": {"adaspec/__init__.py": "raise ImportError('broken')\n"},
    "numba is missing": {
        # What adaspec imports of it; vLLM has an import of its own and needs it.
        "adaspec/__init__.py": "{package}\n__path__.append({checkout!r} + '/adaspec')\n",
        "adaspec/jit.py": "raise ModuleNotFoundError(\"No module named 'numba'\")\n",
    },
    "registering fails": {
        "adaspec/__init__.py": "{package}\n__path__.append({checkout!r} + '/adaspec')\n",
        "adaspec/vllm/__init__.py": "__path__.append({checkout!r} + '/adaspec/vllm')\n",
        "adaspec/vllm/plugin.py": "{plugin}\nwhen_imported = None\n",
    },
    "a patch fails": {
        "adaspec/__init__.py": "{package}\n__path__.append({checkout!r} + '/adaspec')\n",
        "adaspec/vllm/__init__.py": "__path__.append({checkout!r} + '/adaspec/vllm')\n",
        "adaspec/vllm/plugin.py": "{plugin}\nwrap = None\n",
    },
}


@pytest.fixture(params=BREAKAGES)
def breakage(request, tmp_path):
    """A folder whose adaspec, broken in one way, is found before ours."""
    folder = tmp_path / "broken"
    parts = {
        "{checkout!r}": repr(str(CHECKOUT)),
        "{package}": (CHECKOUT / "adaspec" / "__init__.py").read_text(),
        "{plugin}": (CHECKOUT / "adaspec" / "vllm" / "plugin.py").read_text(),
    }
    for name, text in BREAKAGES[request.param].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for mark, part in parts.items():
            text = text.replace(mark, part)
        path.write_text(text)
    return folder


def broken_environment(tmp_path, folder):
    found = environment_with_entry_point(tmp_path)
    return {**found, "PYTHONPATH": f"{folder}:{found['PYTHONPATH']}"}


def vllm(environment, folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "vllm.entrypoints.cli.main", *arguments],
        env=environment,
        cwd=folder,  # `python -m` looks there first: in the checkout it would find a whole adaspec
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.mark.thorough
def test_vllm_says_its_version_and_a_plain_server_answers(
    models, truth, prompts, breakage, tmp_path
):
    from transformers import AutoTokenizer

    environment = broken_environment(tmp_path, breakage)
    done = vllm(environment, tmp_path, "--version")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().splitlines()[-1][0].isdigit()
    expected = AutoTokenizer.from_pretrained(models / "target").batch_decode(truth())
    with Server(models, tmp_path, None, environment=environment) as server:
        assert server.complete(prompts, 48) == expected


@pytest.mark.thorough
def test_whoever_asks_for_a_broken_adaspec_is_told(models, breakage, tmp_path, request):
    target = str(models / "target")
    done = vllm(
        broken_environment(tmp_path, breakage),
        tmp_path,
        *("serve", target, "--dtype", "float32", "--speculative-config", CONFIG),
    )
    assert done.returncode != 0
    said = SAID[request.node.callspec.params["breakage"]]
    lines = [line for line in (done.stderr + done.stdout).splitlines() if said in line]
    assert len(lines) == 1, done.stderr[-2000:]
