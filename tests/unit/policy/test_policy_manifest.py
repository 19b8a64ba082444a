import dataclasses
import json

import policy_fakes as fakes
import pytest
from refusals import refusal

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.cost.load import cost_document
from adaspec.errors import PolicyError
from adaspec.policy.manifest import SCHEMA, PolicyManifest


def record(**changes):
    return {**json.loads(fakes.manifest().to_json()), **changes}


def refused(record):
    said = refusal(PolicyError, PolicyManifest.from_json, json.dumps(record), "m.json")
    assert said.startswith("m.json: ")
    assert len(said) < 400
    return said


def test_the_cost_model_comes_along_and_is_the_one_that_is_named():
    own = dataclasses.replace(H100_LLAMA_3_1_8B, name="mine")
    manifest = fakes.manifest(cost="mine", step_costs=cost_document(own))
    assert PolicyManifest.from_json(manifest.to_json(), "m.json").cost_model == own
    assert fakes.manifest().cost_model == H100_LLAMA_3_1_8B
    assert fakes.manifest(cost="gone").cost_model is None
    assert "are of 'mine'" in refused(record(step_costs=cost_document(own)))


def test_all_keys_are_known_and_there_and_the_schema_is_ours():
    assert "train the policy again" in refused(record(schema=2))
    assert "unknown key 'sede'; did you mean 'seed'?" in refused(record(sede=1))
    newer = refused(record(schema=SCHEMA + 1, new_key=1))
    assert f"schema {SCHEMA + 1} is newer than the {SCHEMA}" in newer
    for key in set(record()) - {"schema"}:
        without = {name: value for name, value in record().items() if name != key}
        assert f"key '{key}' is missing" in refused(without)


SENSELESS = {
    "schema": [0, "1", True, None],
    "features": [0, "v61de23ad", None],
    "sources": [[], "neural", ["neural", "ngram"], ["eagle"], ["ngram"]],
    "cap": [0, 4, True, 10**6],
    "neural_cap": [None, 1.5],
    "cost": [""],
    "step_costs": [[], {"tokens": [1, 2]}],
    "training_requests": [["0123"], ["b" * 16, "a" * 16], ["a" * 16, "a" * 16], None],
    "seed": [-1, 2**64],
    "evidence": [["prefix"], "tokens"],
    "target": [3, "two\nlines"],
    "vocabulary_hash": [3, "0123456789abcdef"],
    "metrics": [3, []],
    "forwards": [{"one": 1}, {"0": 1}, {"1": True}, [1], {"1": 9}, {"1": -1}],
    "adaspec_version": [1],
}


@pytest.mark.parametrize("key", SENSELESS)
def test_a_field_that_makes_no_sense_is_named(key):
    for value in SENSELESS[key]:
        assert key in refused(record(**{key: value})), value


def test_metrics_that_are_not_finite_are_refused():
    with pytest.raises(PolicyError, match="metrics"):
        fakes.manifest(metrics={"auc": float("nan")})
