"""A plug-in that is broken leaves vLLM as it is; each of these really starts it."""

import subprocess
import sys

import pytest
from live_server import CHECKOUT, PATIENCE_S, Server, environment_with_entry_point

SAID = {
    "the package cannot be imported": "Failed to load plugin adaspec",
    "numba is missing": "cannot be imported whole (ModuleNotFoundError: No module named 'numba')",
}
BREAKAGES = {
    "the package cannot be imported": {"adaspec/__init__.py": "raise ImportError('broken')\n"},
    "numba is missing": {
        # What adaspec imports of it; vLLM has an import of its own and needs it.
        "adaspec/__init__.py": "{package}\n__path__.append({checkout!r} + '/adaspec')\n",
        "adaspec/jit.py": "raise ModuleNotFoundError(\"No module named 'numba'\")\n",
    },
}


@pytest.fixture(params=BREAKAGES)
def breakage(request, tmp_path):
    """A folder whose adaspec, broken in one way, is found before ours."""
    folder = tmp_path / "broken"
    parts = {
        "{checkout!r}": repr(str(CHECKOUT)),
        "{package}": (CHECKOUT / "adaspec" / "__init__.py").read_text(),
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


@pytest.mark.thorough
def test_a_plain_server_answers_and_whoever_asks_for_a_broken_adaspec_is_told(
    models, truth, prompts, breakage, tmp_path, request
):
    from transformers import AutoTokenizer

    environment = broken_environment(tmp_path, breakage)
    expected = AutoTokenizer.from_pretrained(models / "target").batch_decode(truth())
    with Server(models, tmp_path, None, environment=environment) as server:
        assert server.complete(prompts, 48) == expected
    words = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(models / "target")]
    done = subprocess.run(
        [*words, "--dtype", "float32", "--speculative-config", '{"method": "adaspec"}'],
        env=environment,
        cwd=tmp_path,  # `python -m` looks there first: in the checkout it would find a whole one
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode != 0
    said = SAID[request.node.callspec.params["breakage"]]
    lines = [line for line in (done.stderr + done.stdout).splitlines() if said in line]
    assert len(lines) == 1, done.stderr[-2000:]
