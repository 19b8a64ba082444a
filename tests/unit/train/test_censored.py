"""Training on what a live policy logged: survival is recovered under censoring."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from logged_traffic import logged_steps, write_logged
from synthetic import Workload, synthesize, write_synthetic
from tiny_training import OPTIONS, TINY

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.errors import TrainingError
from adaspec.policy.artifact import load_artifact
from adaspec.policy.learned import load_policy
from adaspec.predict.model import NEURAL_FIRST, NEURAL_MORE
from adaspec.predict.network import predict
from adaspec.replay.logged import Steps, are_logged, log_of, logged_request, read_logged
from adaspec.trace.reader import TraceReader
from adaspec.train.censored import fit_censored, seen_in, survival
from adaspec.train.heads import Settings
from adaspec.train.logged_recipe import train_logged
from adaspec.train.token_tables import TableMaker

# One hit rate: the truth does not hang on which requests were drawn, nor on what was seen of them.
STEADY = Workload("steady", (30, 60), (150, 250), 0.2, 8.0, 0.0, 0.75, 0.75)
VARIED = {0: 0.2, 1: 0.3, 2: 0.2, 3: 0.1, 5: 0.1, 6: 0.1}


@pytest.fixture(scope="module")
def requests():
    return list(synthesize(0, (STEADY,), requests_per_workload=60))


def log_from(path):
    return log_of(read_logged([TraceReader(path)], TrainingError)[0])


def said_by(fitted, log):
    seen = seen_in(log, [(fitted.model.tables, np.ones(len(log.recording), np.bool_))])
    heads = predict(fitted.model.networks["before"], seen.x)
    curves = fitted.model.curves["neural"]
    return survival(heads[:, NEURAL_FIRST], heads[:, NEURAL_MORE], curves)


def test_survival_is_recovered_from_drafts_that_were_mostly_cut_short(requests, tmp_path):
    log = log_from(write_logged(tmp_path / "log", requests, VARIED))
    fitted = fit_censored(log, Settings(threads=1))
    said = said_by(fitted, log)
    assert fitted.neural_cap == 6
    for depth in range(1, 7):
        assert said[:, depth].mean() == pytest.approx(STEADY.easy_hit**depth, abs=0.03)
    # Counting censored drafts as if they had ended would say far less.
    drafted = log.neural_len > 0
    naive = (log.neural_accepted[drafted] >= 4).mean()
    assert naive < STEADY.easy_hit**4 - 0.1
    assert (said[:, 7:] == 0).all()


def test_features_along_a_log_are_those_of_a_policy_that_chose_the_same(requests, tmp_path):
    """Steps without a draft may be missing from a log; nothing changes for those that stand."""
    whole = log_from(write_logged(tmp_path / "whole", requests[:10], VARIED))
    reader = TraceReader(tmp_path / "whole")
    rows = read_logged([reader], TrainingError)[0]
    thinned = []
    for each in rows:
        keep = (each.neural_len > 0) | (np.arange(len(each.position)) == 0)
        names = [item.name for item in dataclasses.fields(Steps)]
        thinned.append(dataclasses.replace(each, **{n: getattr(each, n)[keep] for n in names}))
    thin = log_of(thinned)
    everyone = np.ones(len(rows), np.bool_)
    tables = TableMaker(whole.recording, 0).make(everyone)
    a, b = (seen_in(log, [(tables, everyone)]) for log in (whole, thin))
    keep = np.isin(whole.at, thin.at)
    np.testing.assert_array_equal(a.x[keep], b.x)
    matched = a.splice_tokens > 0
    assert matched.sum() > 100
    np.testing.assert_array_equal(a.splice_x[matched], b.splice_x[b.splice_tokens > 0])


# --- the recipe -----------------------------------------------------------------------------------

VOCABULARIES = [f"128-{digit * 16}" for digit in "ab"]


@pytest.fixture(scope="module")
def product(requests, tmp_path_factory):
    folder = tmp_path_factory.mktemp("logged")
    trace = write_logged(folder / "log", requests, VARIED, vocabulary_hash=VOCABULARIES[0])
    assert are_logged([trace], TrainingError, "train on")
    return train_logged([trace], folder / "mine", H100_LLAMA_3_1_8B, OPTIONS)


def test_a_logged_trace_trains_a_policy_whose_card_says_how_it_was_judged(
    product, requests, tmp_path
):
    policy = load_policy(product.folder)
    assert policy.neural_cap == 6
    assert policy.manifest.sources == ("ngram", "neural", "splice")
    card = load_artifact(product.folder).card
    assert policy.manifest.vocabulary_hash == VOCABULARIES[0]
    assert "logged traces alone" in card
    assert "neural hazard 1" in card
    found = policy.manifest.metrics["identified"]["neural hazard 1"]
    assert found["said"] == pytest.approx(0.75, abs=0.03)
    # So few examples per bin say no better: the truth is the same everywhere.
    assert found["ece"] < 0.12
    trace = write_logged(tmp_path / "log", requests, VARIED, vocabulary_hash=VOCABULARIES[0])
    again = train_logged([trace], tmp_path / "other", H100_LLAMA_3_1_8B, OPTIONS)
    for file in product.folder.iterdir():
        assert (again.folder / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_log_without_neural_drafts_trains_an_ngram_only_policy(requests, tmp_path):
    trace = write_logged(tmp_path / "log", requests, {0: 1.0})
    found = train_logged([trace], tmp_path / "mine", H100_LLAMA_3_1_8B, OPTIONS)
    assert found.manifest.sources == ("ngram",)
    assert "n-gram only" in (tmp_path / "mine" / "CARD.md").read_text()


def test_what_logs_cannot_identify_is_refused_in_one_line(requests, tmp_path):
    blind = write_logged(tmp_path / "blind", requests[:20], VARIED, text=False)
    rare = write_logged(tmp_path / "rare", requests[:20], {0: 0.997, 1: 0.003})
    few = write_logged(tmp_path / "few", requests[:4], VARIED)
    one, two = (
        write_logged(tmp_path / digest[-1], some, VARIED, vocabulary_hash=digest)
        for digest, some in zip(VOCABULARIES, (requests[:10], requests[10:20]), strict=True)
    )
    for traces, more, said in (
        ([blind], {}, "20 without their text"),
        ([rare], {}, "neural drafts were verified at"),
        ([few], {}, "too few requests"),
        ([one, two], {}, "differ in their vocabulary"),
        ([one], {"exclude_workloads": ("nosuch",)}, "no workload 'nosuch' to exclude"),
    ):
        with pytest.raises(TrainingError, match=said) as error:
            train_logged(traces, tmp_path / "mine", H100_LLAMA_3_1_8B, OPTIONS, **more)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "mine").exists()
    write_synthetic(tmp_path / "dense", 0, TINY, requests_per_workload=2)
    with pytest.raises(TrainingError, match="train on one kind"):
        are_logged([few, tmp_path / "dense"], TrainingError, "train on")


def test_steps_of_mode_shadow_are_told_from_a_text_that_does_not_fit(requests):
    steps = list(logged_steps(requests[0], {3: 1.0}, np.random.default_rng(0)))
    assert not isinstance(logged_request(steps), str)
    head = steps[0]
    shadow = [
        dataclasses.replace(head, step=at, position=1 + at, accepted=min(at, 1)) for at in range(5)
    ]
    assert logged_request(shadow) == "of mode shadow, in which no decision is carried out"
    twice = [head, dataclasses.replace(head, step=1)]
    assert logged_request(twice) == "whose steps contradict their text"
