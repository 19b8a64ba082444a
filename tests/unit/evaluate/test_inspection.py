"""What `adaspec inspect` says of traces, policies and cost models."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from adaspec.cli.main import run
from adaspec.cost.builtin import BUILTIN, DEFAULT
from adaspec.cost.load import FitReport, save_cost
from adaspec.errors import AdaspecError, CostError, PolicyError, TraceError
from adaspec.evaluate.acceptance import NGRAM_CAP, ngram_accepted
from adaspec.evaluate.inspection import inspect
from adaspec.policy.artifact import write_artifact
from adaspec.policy.manifest import PolicyManifest
from adaspec.predict.model import feature_fingerprint
from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import LoggedStep, Request
from adaspec.trace.writer import TraceWriter


def recorded(id, prompt, output, neural=None, workload="edits"):
    return Request(
        workload=workload,
        id=id,
        prompt_tokens=np.array(prompt, np.int32),
        output_tokens=np.array(output, np.int32),
        neural_accepted=None if neural is None else np.array(neural, np.int16),
    )


def written(path, manifest, rows):
    with TraceWriter(path, manifest) as writer:
        for row in rows:
            writer.add(row)
    return path


@pytest.fixture
def dense(tmp_path):
    rows = [
        # Known: 1 2 3 4 1. The copy behind that 1 gives 2 3 4, then it repeats.
        recorded("a", [1, 2, 3, 4], [1, 2, 3, 9], neural=[-1, 2, 1, 0]),
        recorded("b", [5, 6], [7, 8], neural=[-1, 0]),
        # Another length than the output: recorded in another run.
        recorded("c", [5, 6], [7, 8, 9], neural=[-1, 1], workload="chat"),
    ]
    return written(tmp_path / "dense", Manifest(kind="dense", neural_cap=2, target="t"), rows)


@pytest.fixture
def logged(tmp_path):
    rows = [
        LoggedStep("chat", "a", 0, draft_len=3, accepted=3, source="neural"),
        LoggedStep("chat", "a", 1, draft_len=0, accepted=0, source="none"),
        LoggedStep("chat", "a", 2, draft_len=5, accepted=1, source="ngram"),
        LoggedStep("chat", "b", 0, draft_len=1, accepted=0, source="neural"),
    ]
    return written(tmp_path / "logged", Manifest(kind="logged", engine="vllm"), rows)


def write_policy(folder, fingerprint):
    manifest = PolicyManifest(
        fingerprint=fingerprint,
        sources=("ngram",),
        cap=16,
        neural_cap=None,
        cost=DEFAULT,
        static_tuned={1: "fixed:ngram:8:3"},
        training_requests=("0123456789abcdef",),
        seed=1,
    )
    networks, tables = {"threshold": np.zeros(3)}, {"keys": np.zeros((2, 2), np.uint64)}
    write_artifact(folder, manifest, networks, tables, "tree", "# Card")
    return folder


@pytest.fixture
def policy(tmp_path):
    return write_policy(tmp_path / "policy", "v3f2a")


def source(found, workload, name):
    (one,) = [each for each in found["workloads"] if each["workload"] == workload]
    (sums,) = [each for each in one["sources"] if each["source"] == name]
    return sums


def test_a_dense_trace_is_counted_per_workload(dense):
    found = inspect(dense)
    edits, chat = found["workloads"]
    assert (edits["workload"], edits["requests"], edits["paired"]) == ("edits", 2, 2)
    assert (edits["prompt_tokens"], edits["output_tokens"]) == (6, 6)
    assert (chat["workload"], chat["requests"], chat["paired"]) == ("chat", 1, 0)
    assert found["sound"]


def test_neural_acceptance_leaves_out_position_0_and_marks_the_cap(dense):
    neural = source(inspect(dense), "edits", "neural")
    # Positions 1..3 of a hold 2, 1, 0; position 1 of b holds 0; the cap is 2.
    assert neural == {
        "source": "neural",
        "drafts": 4,
        "accepted_mean": 0.75,
        "accepted_share_at_least_1": 0.5,
        "censored_share": 0.25,
        "draft_len_mean": None,
    }


def test_ngram_acceptance_is_the_default_look_ups(dense):
    # a: behind 1 the copy 2 3 4 holds for 2 3; behind 1 2 for 3; behind 1 2 3 for nothing.
    assert source(inspect(dense), "edits", "ngram")["accepted_mean"] == (2 + 1 + 0 + 0) / 4


def test_ngram_acceptance_is_cut_so_that_a_runaway_request_does_not_drown_the_rest():
    copied = list(range(100, 200))
    runaway = recorded("r", copied, copied)
    assert ngram_accepted(runaway).tolist() == [0] + [NGRAM_CAP] * 80 + list(range(19, 0, -1))


def test_a_request_of_one_token_decides_nothing(tmp_path):
    path = written(
        tmp_path / "short", Manifest(kind="dense", neural_cap=2), [recorded("a", [1], [2], [-1])]
    )
    sums = source(inspect(path), "edits", "neural")
    assert (sums["drafts"], sums["accepted_mean"]) == (0, None)


def test_a_logged_trace_is_counted_per_source_and_plain_steps_draft_nothing(logged):
    found = inspect(logged)
    (chat,) = found["workloads"]
    assert (chat["requests"], chat["steps"]) == (2, 4)
    neural = source(found, "chat", "neural")
    assert (neural["drafts"], neural["accepted_mean"], neural["draft_len_mean"]) == (2, 1.5, 2.0)
    assert neural["censored_share"] == 0.5
    assert "none" not in [sums["source"] for sums in chat["sources"]]


def test_a_trace_whose_writer_was_cut_off_is_said_to_be_not_whole(dense):
    (dense / "complete.json").unlink()
    document = inspect(dense)
    assert document["sound"] is False
    assert "cut off" in document["warnings"][0]


def test_a_damaged_shard_is_an_error(dense):
    (shard,) = dense.glob("*.parquet")
    shard.write_bytes(shard.read_bytes()[:-20])
    with pytest.raises(TraceError, match="truncated or damaged"):
        inspect(dense)


def test_reading_reports_its_progress(dense):
    calls = []
    inspect(dense, lambda *call: calls.append(call))
    assert calls == [("reading the trace", done, 3) for done in (1, 2, 3)]


def test_a_policy_folder_is_known_by_its_checksums(policy):
    found = inspect(policy)
    assert found["manifest"]["sources"] == ["ngram"]
    assert found["bytes"] == sum(file.stat().st_size for file in policy.iterdir())
    assert found["counts"]["tables_values"] == 4
    assert found["manifest"]["static_tuned"] == {"1": "fixed:ngram:8:3"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "networks.npz").write_bytes(b"y"), "its SHA-256 is"),
        (lambda folder: (folder / "tables.npz").unlink(), "is missing"),
        (lambda folder: (folder / "SHA256SUMS").unlink(), "SHA256SUMS: is missing"),
        (lambda folder: (folder / "extra.bin").write_bytes(b"?"), "extra.bin"),
    ],
)
def test_a_policy_folder_that_was_tampered_with_is_an_error(policy, damage, message):
    damage(policy)
    with pytest.raises(PolicyError, match=message):
        inspect(policy)


def test_a_policy_of_this_build_whose_files_do_not_fit_together_is_an_error(tmp_path):
    folder = write_policy(tmp_path / "policy", feature_fingerprint())
    with pytest.raises(PolicyError, match="policy 'policy' cannot be used"):
        inspect(folder)


def test_a_cost_file_is_read_and_a_builtin_model_goes_by_its_name(tmp_path):
    save_cost(BUILTIN[DEFAULT], tmp_path / "cost.json")
    assert inspect(tmp_path / "cost.json")["cost"] == dataclasses.asdict(BUILTIN[DEFAULT])
    assert inspect(Path(DEFAULT))["path"] is None


def test_a_file_that_is_no_cost_model_is_an_error(tmp_path):
    (tmp_path / "notes.json").write_text('{"schema": 1}')
    with pytest.raises(CostError, match="not a cost file"):
        inspect(tmp_path / "notes.json")


def test_nothing_at_a_path_is_an_error(tmp_path):
    with pytest.raises(AdaspecError, match="nothing there"):
        inspect(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["dense", "logged", "policy"])
def test_the_command_prints_what_it_found(name, request, capsys):
    path = request.getfixturevalue(name)
    assert run(["inspect", str(path)]) == 0
    out, err = capsys.readouterr()
    assert str(path) in out
    assert {"dense": "dense trace", "logged": "logged trace", "policy": "policy"}[name] in out
    assert err == ""


@pytest.mark.parametrize("name", ["dense", "logged", "policy"])
def test_the_commands_json_is_the_inspections(name, request, capsys):
    path = request.getfixturevalue(name)
    assert run(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == inspect(path)


def test_the_command_prints_a_cost_model_with_the_errors_of_its_fit(tmp_path, capsys):
    fit = FitReport(
        points=50,
        held_out_points=10,
        mean_error=0.0213,
        median_error=0.01,
        p95_error=0.0625,
        standard_errors_s={"fixed_s": 1.5e-5},
        not_identified={"per_kv_s": "what it multiplies is 0 in every point"},
        at_zero=[],
        seed=0,
    )
    save_cost(BUILTIN[DEFAULT], tmp_path / "cost.json", fit)
    assert run(["inspect", str(tmp_path / "cost.json")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "fixed_s 0.00588591 +- 1.5e-05" in out
    assert "not identified: what it multiplies is 0 in every point" in out
    assert "2.1% median 1.0%, 95th percentile 6.2%, 10 of 50 points" in out


def test_the_command_exits_with_2_for_what_is_unsound(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert run(["inspect", str(tmp_path / "empty"), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1


def test_json_lines_are_sent_to_the_import(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"id": "7"}\n')
    assert run(["inspect", str(tmp_path / "a.jsonl")]) == 2
    assert "'adaspec import' makes a trace of them" in capsys.readouterr().err
