"""What compiles, by which names, and what is refused by name."""

import copy

import lightgbm
import numpy as np
import pytest

from adaspec.errors import PolicyError
from adaspec.predict.forest import predict
from adaspec.train import compilation
from adaspec.train.compilation import compile_forest

NAMES = ["length", "kind", "recent"]


def data_of(objective="binary"):
    random = np.random.default_rng(0)
    values = random.normal(size=(300, 3)).astype(np.float32)
    values[:, 1] = random.integers(0, 9, 300)
    label = values[:, 0] + (values[:, 1] % 2) + values[:, 2] > 0.5
    if objective in ("multiclass", "lambdarank"):
        label = label + (values[:, 2] > 1)
    return values, label.astype(float)


def boosted(rounds=3, **parameters):
    parameters = {"objective": "binary", "num_threads": 1, "verbose": -1, **parameters}
    values, label = data_of(parameters["objective"])
    data = lightgbm.Dataset(
        values, label, feature_name=NAMES, categorical_feature=["kind"], params=parameters
    )
    if parameters["objective"] == "lambdarank":
        data.set_group([100, 100, 100])
    return lightgbm.train(parameters, data, rounds)


class Altered:
    """A booster whose dump is changed on the way."""

    def __init__(self, change):
        self.model = copy.deepcopy(boosted().dump_model())
        change(self.model)

    def dump_model(self):
        return self.model


def root_changed(**changes):
    return Altered(lambda model: model["tree_info"][1]["tree_structure"].update(changes))


def test_heads_share_features_by_name_in_any_order():
    values, _ = data_of()
    booster = boosted()
    order = ["recent", "unused", "kind", "length"]
    forest = compile_forest({"one": booster, "two": boosted(5)}, order)
    assert forest.heads == ("one", "two")
    again = np.stack([values[:, 2], values[:, 0] * 0, values[:, 1], values[:, 0]], 1)
    np.testing.assert_allclose(predict(forest, again)[:, 0], booster.predict(values), rtol=1e-12)


def test_it_uses_the_rounds_that_predict_uses():
    values, _ = data_of()
    booster = boosted(9)
    booster.best_iteration = 4
    forest = compile_forest({"head": booster}, NAMES)
    np.testing.assert_allclose(predict(forest, values)[:, 0], booster.predict(values), rtol=1e-12)


def test_an_objective_of_ones_own_predicts_the_sum():
    values, label = data_of()
    booster = boosted(objective=lambda guess, data: (guess - label, np.ones(len(label))))
    forest = compile_forest({"head": booster}, NAMES)
    np.testing.assert_allclose(predict(forest, values)[:, 0], booster.predict(values), rtol=1e-12)


@pytest.mark.parametrize(
    ("booster", "words"),
    [
        (lambda: boosted(objective="multiclass", num_class=3), "objective 'multiclass'"),
        (lambda: boosted(objective="multiclassova", num_class=2), "objective 'multiclassova'"),
        (lambda: boosted(objective="lambdarank"), "objective 'lambdarank'"),
        (lambda: boosted(objective="cross_entropy_lambda"), "objective 'cross_entropy_lambda'"),
        (lambda: boosted(linear_tree=True), "tree 0: linear_tree"),
        (
            lambda: boosted(boosting="rf", bagging_freq=1, bagging_fraction=0.5),
            "boosting 'rf' averages",
        ),
        (lambda: boosted(objective="regression", reg_sqrt=True), "reg_sqrt"),
        (lambda: root_changed(decision_type=">"), "tree 1: decision '>'"),
        (lambda: root_changed(decision_type="<=", missing_type="Odd"), "missing_type 'Odd'"),
        (
            lambda: root_changed(decision_type="==", threshold="1||2000000"),
            "tree 1: category 2000000: at most 1000000",
        ),
        (lambda: Altered(lambda model: model.update(pandas_categorical=[["a"]])), "pandas"),
        (
            lambda: Altered(lambda model: model.update(feature_names=["lenght", "kind", "recent"])),
            "feature 'lenght' is unknown; did you mean 'length'",
        ),
    ],
)
def test_what_does_not_compile_is_refused_by_name(booster, words):
    with pytest.raises(PolicyError, match=words) as refused:
        compile_forest({"fine": boosted(), "first token": booster()}, NAMES)
    assert str(refused.value).startswith("head 'first token'")
    assert "\n" not in str(refused.value)


def test_limits_are_named(monkeypatch):
    monkeypatch.setattr(compilation, "MOST_COLUMNS", 1)
    with pytest.raises(PolicyError, match="different sets of categories and features: at most 1"):
        compile_forest({"head": boosted()}, NAMES)
    monkeypatch.setattr(compilation, "MOST_SLOTS", 9)
    with pytest.raises(PolicyError, match=r"head 'head' tree 0: .* leaves: at most 5 compile"):
        compile_forest({"head": boosted()}, NAMES)
