"""Static rules and recording on V2: the same choice, by curves that the rule writes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from heard import Heard
from live_server import CHECKOUT, PATIENCE_S, environment_with_entry_point
from wandering import check_sound

from adaspec.policy.spec import parse_policy
from adaspec.trace.reader import TraceReader

TOKENS = 32


@pytest.mark.parametrize("trims", [True, pytest.param(False, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("head", "spec", "neural", "copied"),
    [
        ("eagle3", "none", {0}, {0}),
        ("eagle3", "fixed:neural:3", {3}, {0}),
        ("eagle3", "hybrid-splice:3:8:2:1:4", {0, 2}, {0, 4, 8}),
        (None, "fixed:ngram:5:2", {0}, {0, 5}),
    ],
)
def test_a_rule_drafts_what_it_says(served, prompts, truth, head, spec, neural, copied, trims):
    engine = served(head, trims=trims)
    session = engine.put(parse_policy(spec))
    verified = Heard(session)["verified"]
    assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    check_sound(session)
    # The engine cuts a request's last draft, and where drafts are of one length, the first ones.
    drafted = [
        (by_head, whole - by_head)
        for event in verified
        for by_head, whole in zip(event.neural_drafted, event.drafted, strict=True)
    ]
    assert max((by_head for by_head, _ in drafted), default=0) == max(neural)
    assert max((ngram for _, ngram in drafted), default=0) == max(copied)
    if trims:
        usual = [(by_head in neural, ngram in copied) for by_head, ngram in drafted]
        assert np.mean(usual or [1]) > 0.8, drafted


RECORD = "from adaspec.cli.main import main; main()"


@pytest.fixture
def record(models, tmp_path, prompts):
    """Runs `adaspec record`, its Python begun by some code; returns its requests by id."""
    asked = tmp_path / "prompts.jsonl"
    with asked.open("w") as file:
        for at, prompt in enumerate(prompts):
            line = {"workload": "some", "id": str(at), "prompt_token_ids": prompt}
            file.write(json.dumps(line) + "\n")

    def run(name, code, **variables):
        out = tmp_path / name
        words = [sys.executable, "-c", code, "record", "--model", str(models / "target")]
        words += ["--draft", str(models / "eagle3"), "--prompts", str(asked), "-o", str(out)]
        words += ["--max-tokens", "16", "--k", "3", "--json", "--engine"]
        arguments = {"dtype": "float32", "max_model_len": 384, "max_num_seqs": 8}
        arguments |= {"enforce_eager": True, "num_gpu_blocks_override": 512}
        arguments |= variables.pop("arguments", {})
        environment = environment_with_entry_point(tmp_path / f"{name}-entry")
        for variable in ("TRITON_INTERPRET", "VLLM_USE_V2_MODEL_RUNNER"):
            environment.pop(variable, None)
        environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **variables}
        ran = subprocess.run(
            [*words, json.dumps(arguments)],
            env=environment,
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        reader = TraceReader(out)
        assert reader.warnings == []
        return {each.id: each for each in reader.requests()}, ran.stderr

    return run


def test_the_same_is_recorded_as_on_v1(record, prompts):
    v1, _ = record("v1", RECORD)
    here = Path(__file__).parent
    code = f"import sys; sys.path[:0] = [{str(here)!r}]; import interpreter; {RECORD}"
    v2, said = record("v2", code, arguments={"async_scheduling": True})
    assert "served on vLLM's model runner V1" not in said
    assert len(v1) == len(v2) == len(prompts)
    for name, ours in v1.items():
        theirs = v2[name]
        np.testing.assert_array_equal(theirs.prompt_tokens, ours.prompt_tokens)
        np.testing.assert_array_equal(theirs.output_tokens, ours.output_tokens)
        np.testing.assert_array_equal(theirs.drafted_tokens, ours.drafted_tokens)
        # vLLM's two runners differ a little in forwards behind the first.
        for first, end, close in ((0, 1, 1e-5), (1, 3, 0.1)):
            columns = slice(first, end)
            np.testing.assert_allclose(
                theirs.confidences[:, columns], ours.confidences[:, columns], atol=close
            )
