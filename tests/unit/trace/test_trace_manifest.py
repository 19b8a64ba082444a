import json

import numpy as np
import pytest
from msgspec import structs
from refusals import refusal

from adaspec.errors import TraceError
from adaspec.records import fits, parse_json
from adaspec.trace.identity import model_name, request_hash, vocabulary_hash
from adaspec.trace.schema import Manifest, VocabularyHash


def from_json(text, where):
    return Manifest.from_record(parse_json(text, where, TraceError), where)


def changed(manifest, **changes):
    return json.dumps(json.loads(manifest.to_json()) | changes)


def test_traces_of_two_vocabularies_differ_where_both_are_known(dense):
    mine, theirs = (structs.replace(dense, vocabulary_hash=f"3-{digit * 16}") for digit in "ab")
    said = f"vocabulary_hash is '3-{'b' * 16}' there and '3-{'a' * 16}' here"
    assert mine.difference(theirs) == said
    assert mine.difference(dense) is None
    assert dense.difference(mine) is None


def test_a_trace_of_before_is_read_unless_its_ids_are_scrambled(dense):
    third = {"schema": 3, "kind": "dense", "fingerprint": None}
    second = third | {"schema": 2, "scrambled": False}
    assert from_json(changed(dense, **third), "m.json") == dense
    assert from_json(changed(dense, **second), "m.json") == dense
    with pytest.raises(TraceError, match=r"^m\.json: its token ids .*: record the trace again$"):
        from_json(changed(dense, **second | {"scrambled": True}), "m.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"neural_cap": None}, "draft_cap is given but neural_cap is null"),
        ({"draft_cap": None}, "confidences are given but draft_cap is null"),
        ({"confidences": ["logprobs"]}, "confidences is ('logprobs',): expected some of logprob"),
        ({"vocabulary_hash": "x"}, "vocabulary_hash is 'x': expected a count"),
    ],
)
def test_fields_that_contradict_are_refused(dense, changes, message):
    said = refusal(TraceError, from_json, changed(dense, **changes), "m.json")
    assert said.startswith("m.json: ")
    assert message in said


def test_the_hash_depends_on_tokens_and_not_on_how_they_are_held():
    # Manifests of policies hold such hashes: another one would make seen requests unseen.
    digits = "230d54b3e8b99bd7"
    assert request_hash([1, 2, 3], [4, 5]) == digits
    for dtype in (np.int16, np.int32, np.int64, np.uint16, np.dtype(">i4")):
        assert request_hash(np.array([1, 2, 3], dtype), np.array([4, 5], dtype)) == digits
    assert request_hash(np.array([1, 9, 2, 9, 3, 9])[::2], (4, 5)) == digits
    assert len({digits, request_hash([1, 2], [3, 4, 5]), request_hash([], [1, 2, 3, 4, 5])}) == 3


VOCABULARY = {"<s>": 0, "a": 1, "b": 2, "\u00fc": 3}


def test_a_vocabularys_hash_says_how_many_tokens_and_which_id_each_has():
    found = vocabulary_hash(VOCABULARY)
    assert fits(found, VocabularyHash)
    assert fits("4", VocabularyHash)
    assert found == "4-c64bb92bbbbb4dfc"
    assert vocabulary_hash(dict(reversed(VOCABULARY.items()))) == found
    others = [
        VOCABULARY | {"a": 2, "b": 1},
        VOCABULARY | {"c": 4},
        {"c" if token == "a" else token: id for token, id in VOCABULARY.items()},
    ]
    assert len({found, *map(vocabulary_hash, others)}) == 4
    no_text = {"\ud800": 0, b"\xff": 1}
    assert vocabulary_hash(no_text).startswith("2-")


def test_a_folder_has_one_name_from_wherever_it_is_named(tmp_path, monkeypatch):
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    names = {model_name("models/mine")}
    monkeypatch.chdir(tmp_path / "models")
    names |= {model_name("mine"), model_name("./mine"), model_name(str(tmp_path / "models/mine"))}
    assert names == {str(tmp_path / "models" / "mine")}
    assert model_name("org/mine") == "org/mine"
