"""A compiled forest predicts what LightGBM predicts, whatever it was trained on and is asked."""

from __future__ import annotations

import lightgbm
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_forest import predict as predict_naively

from adaspec.predict.forest import Forest, predict
from adaspec.train.compilation import compile_forest

EDGES = np.array(
    [0, -0.0, 1e-35, -1e-35, 1.1e-35, 1e-40, -1e-40, np.inf, -np.inf, np.nan, 3e38, -3e38],
    np.float32,
)
OBJECTIVES = ["binary", "regression"]


@st.composite
def questions(draw):
    """Boosters over the same features, and rows at, next to and far from their thresholds."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, width = draw(st.integers(20, 300)), draw(st.integers(1, 6))
    values = random.normal(size=(rows, width)).astype(np.float32)
    names = [f"f{place}" for place in range(width)]
    for place in range(width):
        kind = draw(st.sampled_from(["plain", "coarse", "constant", "tiny"]))
        if kind == "coarse":
            values[:, place] = np.round(values[:, place])
        elif kind == "constant":
            values[:, place] = draw(st.sampled_from([0, 1.5, np.nan]))
        elif kind == "tiny":
            values[:, place] *= np.float32(1e-35)
        values[random.random(rows) < draw(st.sampled_from([0, 0, 0.3])), place] = np.nan
        values[random.random(rows) < draw(st.sampled_from([0, 0, 0.3])), place] = 0
    heads = {}
    for head in range(draw(st.integers(1, 3))):
        parameters = {
            "objective": draw(st.sampled_from(OBJECTIVES)),
            "num_leaves": draw(st.sampled_from([2, 5, 15, 32, 33, 60])),
            "min_data_in_leaf": draw(st.sampled_from([1, 5, 1000])),
            "max_bin": draw(st.sampled_from([15, 255])),
            "min_data_in_bin": 1,
            "use_missing": draw(st.booleans()),
            "boosting": draw(st.sampled_from(["gbdt", "gbdt", "dart"])),
            "boost_from_average": draw(st.booleans()),
            "num_threads": 1,
            "verbose": -1,
            "seed": 1,
        }
        label = np.nan_to_num(values) @ random.normal(size=width) + random.normal(size=rows)
        label += (values[:, -1] % 3 == 1) + 2 * np.isnan(values[:, 0])
        if parameters["objective"] == "binary":
            label = label > draw(st.sampled_from([0, 0, 99]))
        else:
            label = np.abs(label) + 0.01
        data = lightgbm.Dataset(values, label, feature_name=names, params=parameters)
        rounds = draw(st.integers(1, 12))
        heads[f"head{head}"] = lightgbm.train(parameters, data, rounds)
    forest = compile_forest(heads, names)
    asked = values[random.integers(0, rows, draw(st.integers(1, 200)))].copy()
    for place in range(width):
        numbers = forest.slot_number[
            np.isin(forest.slot_column, np.flatnonzero(forest.column_feature == place))
        ].astype(np.float32)
        near = [np.nextafter(numbers, np.float32(side)) for side in (-np.inf, np.inf)]
        pool = np.concatenate([EDGES, numbers, *near])
        changed = random.random(len(asked)) < 0.7
        asked[changed, place] = random.choice(pool, changed.sum())
    return heads, forest, asked


@settings(max_examples=250, deadline=None)
@given(questions())
def test_a_compiled_forest_predicts_what_lightgbm_does(question):
    heads, forest, asked = question
    expected = np.stack([booster.predict(asked, num_threads=1) for booster in heads.values()], 1)
    got = predict(forest, asked)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(predict(Forest.from_arrays(forest.to_arrays()), asked), got, 0, 0)
    # The rows one by one go another way through the kernel.
    few = asked[:3]
    np.testing.assert_allclose(predict(forest, few), expected[:3], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(predict_naively(forest, few), expected[:3], rtol=1e-9, atol=1e-9)
