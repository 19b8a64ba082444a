from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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


def test_an_unknown_key_is_refused_and_the_nearest_known_one_named(dense: Manifest) -> None:
    with pytest.raises(
        TraceError, match=r"^m\.json: unknown key 'draftr'; did you mean 'drafter'\?"
    ):
        from_json(changed(dense, draftr="x"), "m.json")


def test_a_missing_key_is_named(dense: Manifest) -> None:
    record = json.loads(dense.to_json())
    del record["target"]
    with pytest.raises(TraceError, match="'target' is missing"):
        from_json(json.dumps(record), "m.json")


def test_a_newer_schema_is_refused_with_what_to_do(dense: Manifest) -> None:
    with pytest.raises(TraceError, match=rf"schema {SCHEMA + 1} is newer .* update adaspec"):
        from_json(changed(dense, schema=SCHEMA + 1, somethingnew=1), "m.json")


def test_a_trace_of_the_first_schema_says_no_vocabulary_and_is_read(dense: Manifest) -> None:
    first = json.loads(changed(dense, schema=1))
    del first["vocabulary_hash"]
    manifest = from_json(json.dumps(first), "m.json")
    assert manifest == dense
    assert manifest.vocabulary_hash is None
    del first["target"]
    with pytest.raises(TraceError, match="'target' is missing"):
        from_json(json.dumps(first), "m.json")


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


@pytest.mark.parametrize("schema", [0, -1, "1", None, True, 1.5])
def test_a_schema_that_is_no_version_is_refused(dense: Manifest, schema: object) -> None:
    with pytest.raises(TraceError, match="not a version number"):
        from_json(changed(dense, schema=schema), "m.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "sparse"}, "kind is 'sparse', not one of dense, logged"),
        ({"neural_cap": 0}, "neural_cap is 0"),
        ({"neural_cap": float("nan")}, "NaN is no finite number"),
        ({"draft_cap": True}, "draft_cap is True"),
        ({"draft_cap": 129}, "draft_cap is 129, not a whole number from 1 to 128"),
        ({"draft_cap": 10**9, "neural_cap": 4}, "draft_cap is 1000000000, not a whole number"),
        ({"neural_cap": None}, "draft_cap is given but neural_cap is null"),
        ({"draft_cap": None}, "confidences are given but draft_cap is null"),
        ({"confidences": ["logprobs"]}, "unknown confidence 'logprobs'; did you mean 'logprob'"),
        ({"confidences": "logprob"}, "confidences is 'logprob', not a list"),
        ({"sampling": 0}, "sampling is 0, not an object"),
        ({"target": 8}, "target is 8, not a text"),
        ({"vocabulary_hash": "x"}, "vocabulary_hash is 'x', not a count and 16 hex digits"),
        ({"vocabulary_hash": 8}, "vocabulary_hash is 8, not a count and 16 hex digits"),
    ],
)
def test_fields_that_contradict_are_refused(
    dense: Manifest, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TraceError) as caught:
        from_json(changed(dense, **changes), "m.json")
    assert str(caught.value).startswith("m.json: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null"])
def test_what_is_no_manifest_is_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError, match=r"^m\.json: "):
        from_json(text, "m.json")
