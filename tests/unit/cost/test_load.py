"""Cost models by name and from files."""

import dataclasses
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaspec.cost.builtin import BUILTIN, DEFAULT
from adaspec.cost.load import (
    FitReport,
    cost_document,
    cost_from_document,
    load_cost,
    read_cost,
    save_cost,
)
from adaspec.cost.model import CostModel
from adaspec.errors import CostError

SOUND = {
    "schema": 1,
    "kind": "cost",
    "name": "mine",
    "fixed_s": 0.006,
    "per_token_s": 2e-5,
    "per_kv_s": 4e-8,
    "overhead_s": 0.001,
    "draft_fixed_s": 7e-4,
    "draft_per_kv_s": 2e-9,
    "captured_sizes": [1, 2, 4, 8],
}

REPORT = FitReport(
    points=40,
    held_out_points=8,
    mean_error=0.02,
    median_error=0.01,
    p95_error=0.05,
    standard_errors_s={"fixed_s": 1e-5},
    not_identified={"draft_per_kv_s": "what it multiplies is 0 in every point"},
    at_zero=["per_kv_s"],
    seed=3,
)
FIT = dataclasses.asdict(REPORT)


def written(tmp_path, document):
    path = tmp_path / "cost.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def complaint(tmp_path, document):
    with pytest.raises(CostError) as caught:
        load_cost(written(tmp_path, document))
    text = str(caught.value)
    assert "\n" not in text
    assert "cost.json" in text
    return text


def test_a_name_is_a_builtin_model_or_answered_with_the_nearest(tmp_path):
    assert load_cost(DEFAULT) is BUILTIN[DEFAULT]
    for asked, said in (
        ("h100-llama-3-8b", "did you mean 'h100-llama-3.1-8b'?"),
        ("specdecode-bench", "--protocol specdecode-bench"),
        (tmp_path / "nowhere.json", "no such cost file"),
        (tmp_path, "not a file"),
    ):
        with pytest.raises(CostError, match=re.escape(said)):
            load_cost(asked)


def test_an_optional_key_has_a_default_and_async_overhead_is_the_files(tmp_path):
    cost = load_cost(written(tmp_path, SOUND))
    assert (cost.keep_alive_forwards, cost.target, cost.hardware) == (1, None, None)
    assert cost.captured_sizes == (1, 2, 4, 8)
    assert cost.under("async") == cost
    cost = load_cost(written(tmp_path, {**SOUND, "async_overhead_s": 1e-4}))
    assert cost.under("sync").overhead_s == cost.overhead_s
    assert cost.under("async").overhead_s == 1e-4
    assert cost_from_document(cost_document(cost), "here") == cost


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fixed_ms": 6}, "unknown key 'fixed_ms'; did you mean 'fixed_s'?"),
        ({"schema": 2}, "schema 2 is newer than the 1"),
        ({"kind": "policy"}, "kind is 'policy', not 'cost'"),
        ({"fixed_s": -1e-3}, "fixed_s is -0.001, not seconds from 0 to 100"),
        ({"fixed_s": "6 ms"}, "fixed_s is '6 ms', not seconds"),
        ({"fixed_s": True}, "fixed_s is True, not seconds"),
        ({"fixed_s": 5885.9}, "is it in another unit?"),
        ({"fixed_s": 10**400}, "is no finite number"),
        ({"name": ""}, "name is ''"),
        ({"target": 7}, "target is 7, not a text"),
        ({"captured_sizes": 8}, "captured_sizes is 8, not a list"),
        ({"captured_sizes": [1, 4, 4]}, "captured_sizes[2] is 4 after 4"),
        ({"captured_sizes": [0, 4]}, "captured_sizes[0] is 0 after 0"),
        ({"captured_sizes": [1.5]}, "captured_sizes[0] is 1.5"),
        ({"keep_alive_forwards": -1}, "keep_alive_forwards is -1"),
        ({"fixed_s": 0, "overhead_s": 0, "per_token_s": 0}, "cost nothing"),
        ({"fit": 3}, "fit: is 3, not an object"),
        ({"fit": FIT | {"p95_error": "low"}}, "fit: p95_error is 'low', not a finite number"),
        ({"fit": {"pionts": 3}}, "unknown key 'pionts'; did you mean 'points'?"),
    ],
)
def test_an_unsound_file_is_refused_in_one_line(tmp_path, change, said):
    assert said in complaint(tmp_path, {**SOUND, **change})
    without = {name: value for name, value in SOUND.items() if name != "draft_per_kv_s"}
    assert "'draft_per_kv_s' is missing" in complaint(tmp_path, without)


seconds = st.floats(min_value=0, max_value=50, allow_nan=False)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    fixed_s=st.floats(min_value=1e-9, max_value=50),
    rest=st.tuples(seconds, seconds, seconds, seconds, seconds),
    sizes=st.lists(st.integers(1, 8_192), unique=True).map(sorted),
    keep_alive=st.integers(0, 4),
    name=st.text(min_size=1).filter(lambda text: text.strip() != "" and text.isprintable()),
)
def test_what_is_saved_is_loaded_to_the_same_model(
    tmp_path, fixed_s, rest, sizes, keep_alive, name
):
    cost = CostModel(name, fixed_s, *rest, keep_alive, tuple(sizes), "a target", None)
    path = tmp_path / "saved.json"
    save_cost(cost, path)
    assert load_cost(path) == cost


def test_saving_what_was_loaded_writes_the_same_bytes(tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    save_cost(BUILTIN[DEFAULT], first, REPORT)
    cost, fit = read_cost(first)
    assert (cost, fit) == (BUILTIN[DEFAULT], REPORT)
    save_cost(cost, second, fit)
    assert first.read_bytes() == second.read_bytes()
