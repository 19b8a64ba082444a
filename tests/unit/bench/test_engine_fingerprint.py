"""A benchmark is gone on with by what lies behind its names, not by the names alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from adaspec.bench.engine.entrants import NONE, Entrant
from adaspec.bench.engine.fingerprint import fingerprint
from adaspec.bench.engine.ledger import Ledger
from adaspec.bench.engine.task import Task
from adaspec.bench.engine.traffic import Call
from adaspec.bench.lookup import BenchError

CALLS = {"talk": [Call("talk", "1", (1, 2), 8)]}
LINEUPS = {1: [Entrant(NONE, "", None)]}


@pytest.fixture
def task(tmp_path):
    for folder in ("policy", "head"):
        (tmp_path / folder).mkdir()
    (tmp_path / "policy" / "SHA256SUMS").write_text("aa  forest.npz\n")
    (tmp_path / "head" / "config.json").write_text("{}")
    (tmp_path / "head" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "cost.json").write_text("{}")
    return Task(
        "org/target",
        (),
        Path("out"),
        draft=str(tmp_path / "head"),
        cost=str(tmp_path / "cost.json"),
        policies=(str(tmp_path / "policy"), "hybrid-splice"),
    )


def of(task, vllm="0.32"):
    return fingerprint(task, CALLS, LINEUPS, vllm)


def test_the_same_again_is_the_same(task):
    assert of(task) == of(task)
    # Neither how often nor how near is part of what was measured.
    assert of(replace(task, rounds=9, near_tie=0.5)) == of(task)


@pytest.mark.parametrize(
    ("file", "differs"),
    [
        ("policy/SHA256SUMS", "policies"),
        ("head/model.safetensors", "head"),
        ("head/config.json", "head"),
        ("cost.json", "costs"),
    ],
)
def test_what_was_made_anew_under_its_old_name_is_another(task, tmp_path, file, differs):
    before = of(task)
    Ledger(tmp_path / "rounds.jsonl", before)
    (tmp_path / file).write_text("made anew")
    after = of(task)
    assert [name for name in before if before[name] != after[name]] == [differs]
    with pytest.raises(BenchError, match=f"holds another benchmark \\(other {differs}\\)"):
        Ledger(tmp_path / "rounds.jsonl", after)


def test_another_vllm_is_another(task):
    assert of(task)["vllm"] != of(task, "0.33")["vllm"]


def test_hub_ids_and_builtin_costs_are_their_names(task):
    named = replace(task, draft="org/head", cost="h100-llama-3.1-8b", policies=("hybrid:4:16:3",))
    found = of(named)
    assert found["head"] is found["costs"] is None
    assert found["policies"] == [None]
    assert found["drafter"] == "org/head"
