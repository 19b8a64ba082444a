"""A policy recorded, trained and served by the commands that an operator types."""

import json
import shutil
import subprocess
import sys

import pytest
from test_accepts import Ledger, forwards_of
from test_metrics import DETAILED, check_sums
from test_record_command import ENGINE, environment
from test_server import CHECKOUT, Server
from tiny_models import document, ids_of

pytestmark = pytest.mark.thorough

PROMPTS = 48
PATIENCE_S = 900


def adaspec(folder, *words):
    done = subprocess.run(
        [sys.executable, "-m", "adaspec", *map(str, words)],
        env=environment(folder, "0"),
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.fixture(scope="session")
def trained(models, tmp_path_factory):
    """A policy's folder, trained on what the tiny models were recorded to say."""
    folder = tmp_path_factory.mktemp("trained")
    with (folder / "prompts.jsonl").open("w") as file:
        for at in range(PROMPTS):
            text = ids_of(document(5000 + at, 3 + at % 5))
            record = {"workload": "even" if at % 2 else "odd", "prompt_token_ids": text}
            file.write(json.dumps(record) + "\n")
    head = models / "eagle3"
    adaspec(
        folder,
        *("record", "--model", models / "target", "--draft", head, "--k", 8),
        *("--prompts", folder / "prompts.jsonl", "-o", folder / "traces", "--max-tokens", 96),
        *("--engine", json.dumps({**ENGINE, "max_num_seqs": 16})),
    )
    adaspec(
        folder,
        *("train", folder / "traces", "-o", folder / "policy", "--jobs", 1),
        *("--concurrency", "1,8", "--orders", 2, "--resamples", 0),
    )
    return folder / "policy"


def config_of(models, policy, **more):
    head = str(models / "eagle3")
    return {"method": "adaspec", "model": head, "policy": str(policy), **more}


def test_greedy_output_is_that_without_speculation_and_forwards_are_the_plans(
    engines, models, prompts, truth, trained
):
    expected = truth(tokens=96)
    engine = engines(config_of(models, trained))
    ledger = Ledger()
    engine.session.observers.add(ledger)
    engine.judged.clear()
    count, handle = forwards_of(engine)
    assert engine.greedy(prompts, 96) == expected
    handle.remove()
    assert not engine.session.breaker.counts
    assert engine.session.serving.version.startswith("v")
    assert count[0] == sum(ledger.drafting) + sum(ledger.keep_alive) > 0
    assert sum(ledger.drafting) == sum(ledger.counts)
    assert all(n <= most for n, most in zip(ledger.counts, ledger.planned, strict=True))
    by_vllm = [each for one in engine.judged.values() for each in one]
    assert ledger.drafted == sum(drafted for drafted, _ in by_vllm) > 0
    assert ledger.accepted == sum(accepted for _, accepted in by_vllm) > 0


def test_a_folder_replaced_or_deleted_while_serving_changes_nothing_until_a_restart(
    engines, models, prompts, truth, trained, tmp_path
):
    expected = truth()
    folder = tmp_path / "policy"
    shutil.copytree(trained, folder)
    engine = engines(config_of(models, folder))
    assert engine.greedy(prompts[:4], 48) == expected[:4]
    before = engine.session.policy
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "manifest.json").write_text("{ half of a")
    assert engine.greedy(prompts, 48) == expected
    shutil.rmtree(folder)
    assert engine.greedy(prompts, 48) == expected
    assert engine.session.policy is before
    assert not engine.session.breaker.counts
    assert not engine.session.breaker.off


def test_a_cap_beyond_the_trained_policys_is_refused(models, trained):
    from test_startup import refusal

    line = refusal(models, config_of(models, trained, num_speculative_tokens=64))
    assert "num_speculative_tokens=64 is beyond the cap" in line


def test_metrics_of_a_server_equal_its_responses_and_its_trace(
    models, truth, prompts, tmp_path, trained
):
    from transformers import AutoTokenizer

    expected = AutoTokenizer.from_pretrained(models / "target").batch_decode(truth())
    config = config_of(models, trained, trace_dir=str(tmp_path / "traces"))
    server = Server(models, tmp_path, config, *DETAILED)
    try:
        server.wait()
        check_sums(server, prompts, expected, tmp_path / "traces", policy=str(trained))
    finally:
        server.stop()
