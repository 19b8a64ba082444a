import json

import policy_fakes as fakes
import pytest
from msgspec import structs
from refusals import refusal

from adaspec.cost.load import H100_LLAMA_3_1_8B, cost_document
from adaspec.errors import PolicyError
from adaspec.policy.artifact import SCHEMA, PolicyManifest


def record(**changes):
    return {**json.loads(fakes.manifest().to_json()), **changes}


def refused(record):
    said = refusal(PolicyError, PolicyManifest.from_json, json.dumps(record), "m.json")
    assert said.startswith("m.json: ")
    assert len(said) < 400
    return said


def test_the_cost_model_comes_along_and_is_the_one_that_is_named():
    own = structs.replace(H100_LLAMA_3_1_8B, name="mine")
    manifest = fakes.manifest(cost="mine", step_costs=cost_document(own))
    assert PolicyManifest.from_json(manifest.to_json(), "m.json").cost_model == own
    assert fakes.manifest().cost_model == H100_LLAMA_3_1_8B
    assert fakes.manifest(cost="gone").cost_model is None
    assert "are of 'mine'" in refused(record(step_costs=cost_document(own)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "train the policy again"),
        ({"schema": SCHEMA + 1, "new_key": 1}, f"schema {SCHEMA + 1} is newer than the {SCHEMA}"),
        ({"features": "v61de23ad"}, "features is"),
        ({"sources": []}, "sources is []"),
        ({"sources": ["ngram"]}, "neural_cap is 8, which does not fit sources"),
        ({"sources": ["eagle"]}, "sources[0] is 'eagle'"),
        ({"cap": 4}, "neural_cap is 8, more than the cap 4"),
        ({"step_costs": {"tokens": [1, 2]}}, "step_costs: not a cost file"),
        ({"training_requests": ["0123"]}, "training_requests[0] is '0123': expected 16 hex digits"),
        ({"vocabulary_hash": "0123456789abcdef"}, "vocabulary_hash is"),
        ({"forwards": {"one": 1}}, "forwards is"),
        ({"forwards": {"1": 9}}, "forwards has 9 at 1"),
    ],
)
def test_a_field_that_makes_no_sense_is_named(change, said):
    assert said in refused(record(**change))
