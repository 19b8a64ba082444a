import json

import policy_fakes as fakes
import pytest
from refusals import refusal

from adaspec.errors import GONE, AdaspecError
from adaspec.policy.artifact import PolicyManifest
from adaspec.replay.contender import parse_contender
from adaspec.trace.importers import import_trace
from adaspec.trace.schema import Manifest
from adaspec.vllm.options import read_options
from adaspec.vllm.session.requests import is_off


def policy_key(word):
    record = json.loads(fakes.manifest().to_json())
    PolicyManifest.from_json(json.dumps({**record, word: {}}), "manifest.json")


def kind_of_trace(word):
    record = json.loads(Manifest().to_json())
    Manifest.from_record({**record, "schema": 3, "kind": word}, "manifest.json")


SPECS = "ema hybrid-agree hybrid-until fixed:neural-until fixed:ngram-vllm fixed:memory"
SPECS += " hybrid-memory"
KEYS = "log_decisions_per_s max_context_tokens max_drafted_tokens target sampling memory_bytes"
PLACES = {
    lambda word: read_options({"method": "adaspec", word: 1}): f"{KEYS} memory_dir",
    lambda word: read_options({"method": "adaspec", "mode": word}): "shadow",
    lambda word: is_off({word: 1}): "adaspec_cap adaspec_source",
    lambda word: parse_contender(f"{word}:3"): SPECS,
    lambda word: parse_contender(f"oracle:{word}"): "combine-memory plan-splice-memory",
    lambda word: import_trace(word, ["answers.jsonl"], "traces"): "vllm-responses",
    parse_contender: f"{SPECS} static:memory",
    policy_key: "static_tuned async_static_tuned",
    kind_of_trace: "logged",
}
"""Where a word of before may be given, and the words."""


@pytest.mark.parametrize(
    ("place", "word"), [(place, word) for place, words in PLACES.items() for word in words.split()]
)
def test_a_word_of_before_is_refused_with_what_to_use(place, word):
    assert f": it went in 0.2; {GONE[word]}" in refusal(AdaspecError, place, word)
