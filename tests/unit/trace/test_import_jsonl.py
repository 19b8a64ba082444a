from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaspec.errors import TraceError
from adaspec.trace.importers.formats import import_trace
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import Request


def load(tmp_path: Path, *records: dict[str, Any]) -> list[Request]:
    file = tmp_path / "talk.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in records))
    import_trace("jsonl", [file], tmp_path / "t", target="a/target")
    return list(TraceReader(tmp_path / "t").requests())


def test_tokens_alone_make_a_trace_without_a_neural_drafter(tmp_path: Path) -> None:
    plain = {"prompt_token_ids": [1, 2], "output_token_ids": [3]}
    requests = load(tmp_path, plain, plain | {"workload": "edits"}, plain, plain | {"id": 9})
    named = [(request.workload, request.id) for request in requests]
    assert named == [("talk", "0"), ("edits", "0"), ("talk", "1"), ("talk", "9")]
    assert requests[0].output_tokens.tolist() == [3]
    assert requests[0].neural_accepted is None
    manifest = TraceReader(tmp_path / "t").manifest
    assert (manifest.target, manifest.drafter, manifest.neural_cap) == ("a/target", None, None)


def test_the_drafter_is_who_the_user_says_where_one_drafted(tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    line = {"prompt_token_ids": [1], "output_token_ids": [3, 4]}
    file.write_text(json.dumps(line) + "\n")
    with pytest.raises(TraceError, match=r"'a/head'.*holds no neural counts: leave it out"):
        import_trace("jsonl", [file], tmp_path / "t", drafter="a/head")
    assert not (tmp_path / "t").exists()
    file.write_text(json.dumps(line | {"neural_accepted": [None, 0]}) + "\n")
    found = import_trace("jsonl", [file], tmp_path / "t", drafter="a/head")
    assert found["drafter"] == TraceReader(tmp_path / "t").manifest.drafter == "a/head"


def test_neural_columns_are_read_and_the_caps_found(tmp_path: Path) -> None:
    (request, bare) = load(
        tmp_path,
        {
            "prompt_token_ids": [1],
            "output_token_ids": [3, 4, 5, 6],
            "neural_accepted": [None, 2, 0, 0],
            "drafted_tokens": [None, [4, 5, 9], [8], []],
            "logprob": [[], [-0.1, None, -2], [-3.5], []],
            "ngram_accepted": [None, 0, 7, 0],
            "max_tokens": 4,
        },
        {"prompt_token_ids": [1], "output_token_ids": [3]},
    )
    manifest = TraceReader(tmp_path / "t").manifest
    assert (manifest.neural_cap, manifest.draft_cap) == (3, 3)
    assert manifest.confidences == ("logprob",)
    assert request.neural_accepted is not None
    assert request.drafted_tokens is not None
    assert request.confidences is not None
    assert request.neural_accepted.tolist() == [-1, 2, 0, 0]
    assert request.drafted_tokens.tolist() == [[-1] * 3, [4, 5, 9], [8, -1, -1], [-1] * 3]
    np.testing.assert_array_equal(
        request.confidences[1, :, 0], np.array([-0.1, np.nan, -2], np.float32)
    )
    assert bare.neural_accepted is None
    assert (request.max_tokens, bare.max_tokens) == (4, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_ids": [1]}, "unknown key 'output_ids'; did you mean 'output_token_ids'?"),
        ({"id": 1.5}, "'id' is 1.5, expected a text or a number"),
        ({"neural_accepted": [None, -4]}, "neural_accepted[1] is null or negative"),
        ({"drafted_tokens": [[], []]}, "drafted tokens or confidences without neural_accepted"),
        (
            {"neural_accepted": [None, 0], "drafted_tokens": [[], [-5]]},
            "position 1 has a negative token id or a gap",
        ),
        (
            {"neural_accepted": [None, 0], "drafted_tokens": [[], [5]], "margin": [[], []]},
            "'margin' has not one number per drafted token",
        ),
        ({"max_tokens": 0}, "max_tokens=0 is not a whole number from 1"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    good = {"prompt_token_ids": [1], "output_token_ids": [2, 3]}
    with pytest.raises(TraceError) as caught:
        load(tmp_path, good, good | changes)
    assert str(caught.value).startswith(f"{tmp_path}/talk.jsonl line 2: ")
    assert message in str(caught.value)
    assert not (tmp_path / "t").exists()
