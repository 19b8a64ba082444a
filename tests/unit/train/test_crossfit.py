from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from tiny_training import OPTIONS

from adaspec.cost.load import H100_LLAMA_3_1_8B
from adaspec.evaluate.evaluation import evaluate
from adaspec.evaluate.report import EvaluationReport
from adaspec.train import recipe
from adaspec.train.recipe import cross_fit
from adaspec.train.trainer import Trainer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seen(trace):
    """A cross-fit's report, what its models decided for, and on what each was trained."""
    with (
        patch.object(recipe, "evaluate_folds", wraps=recipe.evaluate_folds) as evaluated,
        patch.object(Trainer, "train", autospec=True, side_effect=Trainer.train) as trained,
    ):
        report = cross_fit([trace], 2, H100_LLAMA_3_1_8B, OPTIONS)
    trained_on = [call.args[1] for call in trained.call_args_list]
    return report, *evaluated.call_args.args[:2], trained_on


def test_every_request_is_decided_by_a_model_that_never_saw_it(seen):
    _, selection, folds, trained_on = seen
    assert len(trained_on) == len(folds) == 2
    judged = [request.id for part, _ in folds for request in part.requests]
    assert sorted(judged) == sorted(request.id for request in selection.requests)
    for (part, _), members in zip(folds, trained_on, strict=True):
        chosen = zip(selection.requests, members, strict=True)
        assert list(part.requests) == [each for each, was_seen in chosen if not was_seen]


def test_figures_are_means_over_folds_that_are_evaluated_by_themselves(seen):
    report, _, folds, _ = seen
    alone = [
        evaluate(part, [policy], H100_LLAMA_3_1_8B, replace(OPTIONS, seed=OPTIONS.seed + number))
        for number, (part, policy) in enumerate(folds)
    ]
    rows = [{place_of(row): row for row in each["rows"]} for each in alone]
    assert rows[0].keys() == rows[1].keys() == {place_of(row) for row in report["rows"]}
    for row in report["rows"]:
        both = [each[place_of(row)] for each in rows]
        speeds = [each["tokens_per_s"] for each in both]
        plain = [each[*place_of(row)[:2], "none"]["tokens_per_s"] for each in rows]
        assert row["tokens_per_s"] == pytest.approx(np.mean(speeds))
        assert row["speedup"] == pytest.approx(np.mean(speeds) / np.mean(plain))
        if "spec" in row["detail"]:
            won = [each["detail"]["spec"] for each in both]
            assert row["detail"]["spec"] == ", ".join(dict.fromkeys(won))


def place_of(row):
    return row["workload"], row["concurrency"], row["policy"]


def test_the_report_is_an_evaluations_and_says_what_it_is(seen):
    report, *_ = seen
    assert report["traces"]["requests"] == {"edits": 24, "talk": 24}
    assert not any("seen_in_training" in row["detail"] for row in report["rows"])
    names = {row["policy"] for row in report["rows"]}
    assert {"crossfit:2", "none", "static:best", "trtllm:K", "oracle:plan-splice"} <= names
    assert len(report["headline"]) == 6
    assert all(entry["lift_ci95"] is not None for entry in report["headline"])
    rows = report["calibration"]
    places = [(row["source"], row["survival"]) for row in rows]
    assert places == [(source, depth) for source in ("ngram", "neural") for depth in (1, 2, 3, 4)]
    for came in ([row["came"] for row in rows[at : at + 4]] for at in (0, 4)):
        assert came == sorted(came, reverse=True)
    page = EvaluationReport(report).page()
    assert "<h2>Calibration</h2>" in page
    assert "cross-fitted in 2 folds" in page
