"""Static rules judged by logs of others, against what is known of every draft."""

import pytest
from logged_traffic import write_logged
from synthetic import Workload, synthesize

from adaspec.api import evaluate_policies
from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.errors import EvaluationError
from adaspec.evaluate.logged import judge, read_log
from adaspec.evaluate.options import Options
from adaspec.evaluate.report import read_report
from adaspec.evaluate.selection import Wanted
from adaspec.policy.spec import parse_policy
from adaspec.replay.contender import parse_contender
from adaspec.replay.paths import walk_rule
from adaspec.replay.recording import build_recording
from adaspec.trace.reader import TraceReader

COST = H100_LLAMA_3_1_8B.without_deciding()
OPTIONS = Options(resamples=10)


@pytest.fixture
def write(tmp_path):
    def make(requests, lengths, **more):
        folder = tmp_path / f"log-{len(list(tmp_path.iterdir()))}"
        return write_logged(folder, requests, lengths, **({"running": 4} | more))

    return make


@pytest.fixture
def logged_of_requests(write):
    def make(requests, lengths, **more):
        return read_log([TraceReader(write(requests, lengths, **more))], Wanted())[1]

    return make


def judged(logged, spec):
    """A rule's row on all workloads."""
    rows = judge(logged, [parse_contender(spec)], COST, OPTIONS)
    return next(row for row in rows if (row["workload"], row["policy"]) == ("all", spec))


def true_emitted(requests, spec):
    """Emitted tokens per step of a rule's replay."""
    paths = walk_rule(build_recording(requests, 8), parse_policy(spec).rule, 48)
    return paths.steps["emitted"].mean()


@pytest.fixture(scope="module")
def many():
    kind = Workload("talk", (20, 40), (60, 90), 0.05, 5.0, 0.5, 0.75, 0.35)
    return list(synthesize(3, (kind,), 250, 8))


@pytest.mark.parametrize("spec", ["fixed:ngram:6:2", "hybrid:3:8:0"])
def test_the_path_of_copies_is_that_of_a_replay(requests_of, logged_of_requests, spec):
    requests = requests_of(count=20)
    found = judged(logged_of_requests(requests, {2: 1.0}), spec)["estimates"]["path"]
    assert found["emitted_per_step"] == pytest.approx(true_emitted(requests, spec))


def test_the_path_of_the_logging_policy_is_the_log(requests_of, logged_of_requests):
    log = logged_of_requests(requests_of(count=20), {3: 1.0})
    rows = judge(log, [parse_contender("fixed:neural:3")], COST, OPTIONS)
    whole = {row["policy"]: row for row in rows if row["workload"] == "all"}
    shown = whole["logged"]["estimates"]["shown"]
    path = whole["fixed:neural:3"]["estimates"]["path"]
    assert path["tokens_per_s"] == pytest.approx(shown["tokens_per_s"])
    assert path["lift_over_logged"] == pytest.approx(0.0)
    assert whole["fixed:neural:3"]["revealed_share"] == 1.0


def test_the_path_elsewhere_is_near_the_true_one(many, logged_of_requests):
    log = logged_of_requests(many, {0: 0.1, 2: 0.05, 5: 0.85})
    row, truth = judged(log, "fixed:neural:4"), true_emitted(many, "fixed:neural:4")
    path = row["estimates"]["path"]
    assert path["emitted_per_step"] == pytest.approx(truth, rel=0.02)
    low, high = path["emitted_per_step_ci95"]
    assert low < truth < high
    assert 0.3 < row["revealed_share"] < 0.9


def test_unverified_tokens_widen_what_is_known_without_a_bias(many, logged_of_requests):
    """The policy drafts two tokens, and more where it knows more than any feature.

    What it chose to verify misleads about longer drafts; what was drafted anyway does not.
    """

    def drafts(right):
        return {2: 0.1, 4: 0.9} if right >= 3 else {2: 0.9, 4: 0.1}

    chosen, whole = (logged_of_requests(many, drafts, further=further) for further in (0, 2))
    with pytest.raises(EvaluationError, match="farther than the log shows"):
        judged(chosen, "fixed:neural:4")
    row, truth = judged(whole, "fixed:neural:4"), true_emitted(many, "fixed:neural:4")
    assert row["estimates"]["path"]["emitted_per_step"] == pytest.approx(truth, rel=0.015)
    shares = [judged(log, "hybrid:3:8:2")["revealed_share"] for log in (chosen, whole)]
    assert shares[0] <= shares[1]


@pytest.mark.parametrize(
    ("lengths", "spec", "said"),
    [
        ({2: 1.0}, "fixed:neural:3", "shows 0 times whether neural token 3"),
        ({2: 1.0}, "hybrid-agree", "it reads drafts"),
        ({2: 1.0}, "budget:4", "cannot be judged by a logged trace"),
    ],
)
def test_a_policy_without_support_is_refused(requests_of, write, lengths, spec, said):
    folder = write(requests_of(count=20), lengths)
    with pytest.raises(EvaluationError, match=said):
        evaluate_policies(folder, [spec])


TEXTS = {"prompt_tokens": None, "output_tokens": None}


@pytest.mark.parametrize(
    ("changes", "asked", "said"),
    [
        ({"running": None}, {}, "how many requests ran"),
        (TEXTS, {}, "without their text"),
        ({}, {"concurrency": 2}, "--concurrency is of replays"),
        ({}, {"prefill": False}, "--no-prefill is of replays"),
        ({}, {"workload": "nosuch"}, "no workload 'nosuch'"),
        ({}, {"exclude_requests": "nosuch/1"}, "no request 'nosuch/1' to exclude"),
    ],
)
def test_what_a_log_lacks_is_refused(requests_of, write, changes, asked, said):
    folder = write(requests_of(count=10), {2: 1.0}, **changes)
    with pytest.raises(EvaluationError, match=said):
        evaluate_policies(folder, **asked)


def test_a_log_is_reported(requests_of, write, tmp_path):
    folder = write(requests_of(count=30), {4: 1.0})
    report = evaluate_policies(folder, ["none", "fixed:neural:2"], resamples=5)
    assert '<td class="name">fixed:neural:2</td>' in report.page()
    assert "fixed:neural:2" in str(report)
    places = [(row["workload"], row["policy"]) for row in report.rows]
    assert len(places) == len(set(places))
    written = read_report(report.write(tmp_path / "report"))
    assert str(written) == str(report)
