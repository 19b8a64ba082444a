from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaspec.errors import TraceError
from adaspec.trace.importers.formats import import_trace
from adaspec.trace.reader import TraceReader


def record(**changes: Any) -> dict[str, Any]:
    return {
        "id": "7",
        "prompt_token_ids": [1, 2, 3],
        "generated_token_ids": [4, 5, 6, 7],
        "acc_eagle": {"acc_len": [1, 3, 2, 1]},
        "acc_ngram": {"acc_len": [1, 1, 1, 6]},
    } | changes


def write(file: Path, *records: dict[str, Any]) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in records))
    return file


def load(source: Path, out: Path) -> dict[str, Any]:
    return import_trace("specdecode-bench", [source], out)


def test_the_bonus_token_is_taken_off_and_entry_0_is_null(tmp_path: Path) -> None:
    write(tmp_path / "combined_cnn.jsonl", record())
    write(tmp_path / "readme.jsonl", {"not": "a recording"})
    summary = load(tmp_path, tmp_path / "t")
    (request,) = TraceReader(tmp_path / "t").requests()
    assert (request.workload, request.id) == ("cnn", "7")
    assert request.neural_accepted is not None
    assert request.ngram_accepted is not None
    assert request.neural_accepted.tolist() == [-1, 2, 1, 0]
    assert request.ngram_accepted.tolist() == [-1, 0, 0, 5]
    assert summary["workloads"] == {"cnn": 1}
    assert (summary["requests"], summary["paired"], summary["output_tokens"]) == (1, 1, 4)


def test_a_list_of_another_length_is_stored_as_recorded_and_unpaired(tmp_path: Path) -> None:
    write(tmp_path / "cnn.jsonl", record(acc_eagle={"acc_len": [1, 1, 3, 2, 1]}))
    assert load(tmp_path, tmp_path / "t")["paired"] == 0
    (request,) = TraceReader(tmp_path / "t").requests()
    assert request.neural_accepted is not None
    assert len(request.neural_accepted) == 5
    assert not request.paired


def test_keys_of_somebody_elses_format_are_ignored_and_counted(tmp_path: Path) -> None:
    write(tmp_path / "cnn.jsonl", record(acc_medusa=1), record(id="8", acc_medusa=1))
    assert load(tmp_path, tmp_path / "t")["notes"] == {"key 'acc_medusa' ignored": 2}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "broken JSON (Expecting property name"),
        ("[1]", "is a list, expected an object"),
        (json.dumps(record(id=None)), "'id' is missing"),
        (json.dumps(record(id="7")), "id '7' occurs twice in workload 'cnn'"),
        (json.dumps(record(id="8", acc_eagle=[1, 2])), "'acc_eagle' holds no 'acc_len'"),
        (json.dumps(record(id="8", acc_eagle={"acc_len": [1, 0]})), "acc_len[1]=0 is below 1"),
        (
            json.dumps(record(id="8", acc_eagle={"acc_len": [1, 1, 1, 3]})),
            "beyond the output's end",
        ),
        (json.dumps(record(id="8", acc_eagle={"acc_len": [1, 23] + 40 * [1]})), "neural_cap=20"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number_and_leaves_nothing(
    tmp_path: Path, line: str, message: str
) -> None:
    file = write(tmp_path / "cnn.jsonl", record())
    file.write_bytes(file.read_bytes() + b"\n" + line.encode("latin-1") + b"\n")
    with pytest.raises(TraceError) as caught:
        load(file, tmp_path / "t")
    assert str(caught.value).startswith(f"{file} line 3: ")
    assert message in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["cnn.jsonl"]


def test_a_source_without_recordings_is_one_clear_line(tmp_path: Path) -> None:
    def refused(said: str, source: Path, format: str = "specdecode-bench") -> None:
        with pytest.raises(TraceError, match=said):
            import_trace(format, [source], tmp_path / "t")
        assert not (tmp_path / "t").exists()

    refused("there is no such file", tmp_path / "nowhere")
    refused(r"holds no combined_\*\.jsonl or", tmp_path)
    refused("'spec-bench'; did you mean 'specdecode-bench'", tmp_path, "spec-bench")
    (tmp_path / "cnn.jsonl").touch()
    refused("nothing to import was found", tmp_path)


def test_progress_ends_at_the_size_of_the_files(tmp_path: Path) -> None:
    file = write(tmp_path / "cnn.jsonl", record(), record(id="8"))
    seen: list[tuple[int, int]] = []
    import_trace(
        "specdecode-bench", [file], tmp_path / "t", progress=lambda *pair: seen.append(pair)
    )
    assert seen[-1] == (file.stat().st_size, file.stat().st_size)


def test_the_public_recordings_are_kept_number_for_number(
    shared_traces: Path, tmp_path: Path
) -> None:
    summary = load(shared_traces, tmp_path / "t")
    assert summary["workloads"] == {"cnn": 219, "gsm8k": 204, "instructcoder": 345, "sharegpt": 230}
    assert (summary["paired"], summary["notes"]) == (523, {})
    reader = TraceReader(tmp_path / "t")
    assert reader.manifest.neural_cap == 20
    overruns = 0
    for workload in summary["workloads"]:
        with (shared_traces / f"{workload}.jsonl").open() as lines:
            for request, line in zip(reader.requests(workload), lines, strict=True):
                recorded = json.loads(line)
                assert request.id == recorded["id"]
                assert request.prompt_tokens.tolist() == recorded["prompt_token_ids"]
                assert request.output_tokens.tolist() == recorded["generated_token_ids"]
                for key, accepted in (
                    ("acc_eagle", request.neural_accepted),
                    ("acc_ngram", request.ngram_accepted),
                ):
                    assert accepted is not None
                    emitted = np.array(recorded[key]["acc_len"])
                    # Nothing is lost by making entry 0 null: it is 1 everywhere.
                    assert emitted[0] == 1
                    np.testing.assert_array_equal(accepted[1:], emitted[1:] - 1)
                ngram = request.ngram_accepted
                assert ngram is not None
                overruns += int((np.arange(len(ngram)) + ngram > len(ngram)).sum())
    assert overruns == 306, "n-gram counts that run past the output's end, as recorded"
