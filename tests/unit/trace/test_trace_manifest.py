from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest
from refusals import refusal

from adaspec.documents import parse_json
from adaspec.errors import TraceError
from adaspec.trace.manifest import SCHEMA, Manifest


def from_json(text: str, where: str) -> Manifest:
    return Manifest.from_record(parse_json(text, where, TraceError), where)


def changed(manifest: Manifest, **changes: Any) -> str:
    return json.dumps(json.loads(manifest.to_json()) | changes)


def test_a_manifest_survives_the_round_trip_byte_for_byte(dense: Manifest) -> None:
    again = from_json(dense.to_json(), "manifest.json")
    assert again == dense
    assert again.to_json() == dense.to_json()
    assert pickle.loads(pickle.dumps(dense)) == dense


def test_traces_of_two_vocabularies_differ_where_both_are_known(dense: Manifest) -> None:
    mine, theirs = (replace(dense, vocabulary_hash=f"3-{digit * 16}") for digit in "ab")
    said = f"vocabulary_hash is '3-{'b' * 16}' there and '3-{'a' * 16}' here"
    assert mine.difference(theirs) == said
    assert mine.difference(dense) is None
    assert dense.difference(mine) is None


def test_a_trace_of_the_second_schema_is_read_unless_its_ids_are_scrambled(dense: Manifest) -> None:
    assert from_json(changed(dense, schema=2, scrambled=False), "m.json") == dense
    with pytest.raises(TraceError, match=r"^m\.json: its token ids .*: record the trace again$"):
        from_json(changed(dense, schema=2, scrambled=True), "m.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draftr": "x"}, "unknown key 'draftr'; did you mean 'drafter'?"),
        ({"schema": SCHEMA + 1, "somethingnew": 1}, f"schema {SCHEMA + 1} is newer"),
        ({"kind": "sparse"}, "kind is 'sparse', not one of dense, logged"),
        ({"neural_cap": 0}, "neural_cap is 0"),
        ({"draft_cap": 129}, "draft_cap is 129, not a whole number from 1 to 128"),
        ({"neural_cap": None}, "draft_cap is given but neural_cap is null"),
        ({"draft_cap": None}, "confidences are given but draft_cap is null"),
        (
            {"confidences": ["logprobs"]},
            "confidences is ['logprobs'], not a list of logprob",
        ),
        ({"confidences": "logprob"}, "confidences is 'logprob', not a list"),
        ({"sampling": 0}, "sampling is 0, not an object"),
        ({"target": 8}, "target is 8, not a text"),
        ({"vocabulary_hash": "x"}, "vocabulary_hash is 'x', not a count, alone or with '-' and 16"),
    ],
)
def test_fields_that_contradict_are_refused(
    dense: Manifest, changes: dict[str, Any], message: str
) -> None:
    said = refusal(TraceError, from_json, changed(dense, **changes), "m.json")
    assert said.startswith("m.json: ")
    assert message in said
