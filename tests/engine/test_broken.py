"""A plug-in that is broken leaves vLLM as it is: a real server starts beside it."""

import pytest
from checkout import CHECKOUT, run_python
from live_server import PATIENCE_S, Server, environment_with_entry_point

SAID = "cannot be imported whole (ModuleNotFoundError: No module named 'numba')"


@pytest.fixture
def environment(tmp_path):
    """Variables by which an adaspec that finds no numba is found before ours."""
    broken = tmp_path / "broken" / "adaspec"
    broken.mkdir(parents=True)
    package = (CHECKOUT / "adaspec" / "__init__.py").read_text()
    (broken / "__init__.py").write_text(f"{package}\n__path__.append('{CHECKOUT}/adaspec')\n")
    # vLLM has an import of its own and needs it.
    (broken / "jit.py").write_text("raise ModuleNotFoundError(\"No module named 'numba'\")\n")
    found = environment_with_entry_point(tmp_path)
    return {**found, "PYTHONPATH": f"{broken.parent}:{found['PYTHONPATH']}"}


@pytest.mark.thorough
def test_a_plain_server_answers_and_whoever_asks_for_a_broken_adaspec_is_told(
    models, truth, prompts, environment, tmp_path
):
    from transformers import AutoTokenizer

    expected = AutoTokenizer.from_pretrained(models / "target").batch_decode(truth())
    with Server(models, tmp_path, None, environment=environment) as server:
        assert server.complete(prompts, 48) == expected
    words = ["-m", "vllm.entrypoints.cli.main", "serve", models / "target", "--dtype", "float32"]
    words += ["--speculative-config", '{"method": "adaspec"}']
    # `python -m` looks into the working folder first: in the checkout it would find a whole one.
    done = run_python(*words, code=1, cwd=tmp_path, timeout=PATIENCE_S, **environment)
    lines = [line for line in (done.stderr + done.stdout).splitlines() if SAID in line]
    assert len(lines) == 1, done.stderr[-2000:]
