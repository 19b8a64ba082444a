import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from random_recordings import random_cost
from refusals import refusal

from adaspec.cost import load
from adaspec.errors import CostError

SOUND = {
    "schema": 3,
    "kind": "cost",
    "name": "mine",
    "tokens": [1, 2, 4, 8, 9, 64],
    "seconds": [0.006, 0.006, 0.006, 0.007, 0.02, 0.03],
    "largest_graph": 8,
    "context_s": 4e-8,
    "forward_s": 7e-4,
}

REPORT = load.FitQuality(
    points=40,
    held_out_points=8,
    mean_error=0.02,
    median_error=0.01,
    p95_error=0.05,
    not_identified={"forward_context_s": "what it multiplies is 0 in every point"},
)
FIT = structs.asdict(REPORT)


def written(tmp_path, document):
    path = tmp_path / "cost.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def complaint(tmp_path, document):
    text = refusal(CostError, load.load_cost, written(tmp_path, document))
    assert "cost.json" in text
    return text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2, "sync": {}}, "measure it again with 'adaspec profile'"),
        ({"context_s": -1e-3}, "context_s is -0.001: expected seconds from 0 to 100"),
        ({"forward_s": 5885.9}, "is it in another unit?"),
        ({"tokens": [1, 2]}, "2 tokens, but 6 seconds"),
        ({"tokens": [1, 4, 4, 8, 9, 64]}, "0.006 s for 4 tokens stand behind 0.006 s for 4:"),
        (
            {"seconds": [0.1, 0.1, 0.1, 0.1, 0.2, 0.1]},
            "0.1 s for 64 tokens stand behind 0.2 s for 9:",
        ),
        ({"seconds": [0, 0, 0, 0, 0, 0]}, "0.0 s for 1 tokens stand behind 0.0 s for 0:"),
        ({"seconds": [0.1, 0.1, 0.1, 0.1, 0.1, "1"]}, "seconds[5] is '1': expected seconds"),
        ({"largest_graph": 7}, "largest_graph 7 is none of its tokens"),
        ({"largest_graph": 4}, "give a step of 5 tokens"),
        ({"largest_graph": 64}, "give a step of 65 tokens"),
        ({"fit": FIT | {"p95_error": "low"}}, "fit: p95_error is 'low': expected float"),
    ],
)
def test_an_unsound_file_is_refused_in_one_line(tmp_path, change, said):
    assert said in complaint(tmp_path, {**SOUND, **change})
    without = {name: value for name, value in SOUND.items() if name != "seconds"}
    assert "'seconds' is missing" in complaint(tmp_path, without)
    cost = load.load_cost(written(tmp_path, SOUND))
    assert (cost.forward_per_row_s, cost.charges_deciding, cost.target) == (0.0, False, None)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 1 << 32),
    name=st.text(min_size=1).filter(lambda text: text.strip() != "" and text.isprintable()),
)
def test_what_is_saved_is_loaded_to_the_same_model_and_saved_as_the_same_bytes(
    tmp_path, seed, name
):
    cost = structs.replace(random_cost(np.random.default_rng(seed)), name=name, target="any")
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    load.save_cost(cost, first, REPORT)
    found = load.read_cost(first)
    assert found == (cost, REPORT)
    assert load.cost_from_document(load.cost_document(cost), "here") == cost
    load.save_cost(found[0], second, found[1])
    assert first.read_bytes() == second.read_bytes()
