"""Policies judged by logs of others, against what is known of every draft."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from adaspec.api import evaluate_policies
from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.cost.model import StepShape
from adaspec.errors import EvaluationError
from adaspec.evaluate.logged.estimators import cells_of, emitted_tokens, sums_of, totals_of
from adaspec.evaluate.logged.evaluation import judge, read_log
from adaspec.evaluate.logged.outcomes import outcomes_of, plans_of_rule
from adaspec.evaluate.options import Options
from adaspec.evaluate.selection import Wanted
from adaspec.policy.spec import parse_policy
from adaspec.replay.contender import parse_contender
from adaspec.replay.paths import walk_rule
from adaspec.replay.recording import build_recording
from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import LoggedStep
from adaspec.trace.writer import TraceWriter

COST = H100_LLAMA_3_1_8B.without_deciding()

RUNNING = 4
OPTIONS = Options(resamples=10)


def steps_of(request, lengths, rng, **changes):
    """Neural drafts whose lengths are drawn from `lengths(accepted)`: {length: probability}."""
    output, step, position = request.output_tokens, 0, 1
    while position < len(output):
        right = int(request.neural_accepted[position])
        chances = lengths(right)
        drafted = int(rng.choice(list(chances), p=list(chances.values())))
        accepted = min(right, drafted)
        reach = [sum(p for k, p in chances.items() if k >= j) for j in range(1, max(chances) + 1)]
        values = {
            "draft_len": drafted,
            "accepted": accepted,
            "source": "neural" if drafted else "none",
            "position": position,
            "context_tokens": len(request.prompt_tokens) + position,
            "running": RUNNING,
            "neural_len": drafted,
            "ngram_len": 0,
            "propensity": chances[drafted],
            "neural_propensity": np.minimum(np.array(reach, np.float32), 1),
            "prompt_tokens": None if step else request.prompt_tokens,
            "output_tokens": None if step else output,
        }
        yield LoggedStep(request.workload, request.id, step, **(values | changes))
        step += 1
        position += accepted + 1


@pytest.fixture
def write(tmp_path):
    def make(requests, lengths, seed=0, **changes):
        rng = np.random.default_rng(seed)
        folder = tmp_path / f"log-{len(list(tmp_path.iterdir()))}"
        with TraceWriter(folder, Manifest(kind="logged", synthetic=True)) as writer:
            for request in requests:
                for step in steps_of(request, lengths, rng, **changes):
                    writer.add(step)
        return folder

    return make


@pytest.fixture
def log_of_requests(write):
    def make(requests, lengths, **more):
        return read_log([TraceReader(write(requests, lengths, **more))], Wanted())[0]

    return make


def estimates(log, spec):
    rows, _ = judge(log, [parse_contender(spec)], COST, OPTIONS)
    return next(r for r in rows if (r["workload"], r["policy"]) == ("all", spec))["estimates"]


def true_at(log, requests, spec):
    """Emitted tokens and seconds of a rule at the logged decisions, the plain way."""
    rule, emitted, seconds = parse_policy(spec).rule, [], []
    dense = build_recording(requests, 8)
    columns, by_key = dense.columns, {(r.workload, r.id): at for at, r in enumerate(dense.requests)}
    for at, r in enumerate(log.recording.requests):
        own = by_key[r.workload, r.id]
        for step in range(log.first[at], log.first[at + 1]):
            position = int(log.position[step])
            i, left = columns.offset[own] + position, len(r.output_tokens) - position
            copied = neural = spliced = accepted = 0
            if rule.ngram_len and columns.match[i] >= rule.min_match:
                copied = min(rule.ngram_len, columns.available[i])
                accepted = min(copied, columns.run[i])
            elif rule.neural_len:
                neural = rule.neural_len
                accepted = min(neural, columns.neural[i])
                if neural < left and columns.match[i + neural] >= rule.splice_match:
                    spliced = min(rule.splice_len, columns.available[i + neural])
                    if accepted == neural:
                        accepted += min(spliced, columns.run[i + neural])
            emitted.append(min(accepted + 1, left))
            context = RUNNING * (len(r.prompt_tokens) + position)
            shape = StepShape(
                RUNNING,
                context,
                RUNNING * copied,
                RUNNING * neural,
                RUNNING * spliced,
                neural,
                rule.neural_len > 0,
            )
            seconds.append(COST.step_s(shape) / RUNNING)
    return np.array(emitted), np.array(seconds)


@pytest.mark.parametrize(
    "spec", ["none", "fixed:neural:3", "fixed:ngram:6:2", "hybrid:3:8:2", "hybrid-splice:4:8:2:1:5"]
)
def test_what_a_log_shows_is_not_estimated(requests_of, log_of_requests, spec):
    """Drafts of 8 tokens show the outcome of every shorter one: all of the error is rounding."""
    requests = requests_of(count=30)
    log = log_of_requests(requests, lambda right: {8: 1.0})
    emitted, seconds = true_at(log, requests, spec)
    found = estimates(log, spec)["direct"]
    assert found["emitted_per_step"] == pytest.approx(emitted.mean())
    assert found["tokens_per_s"] == pytest.approx(emitted.sum() / seconds.sum())


def test_a_rejected_draft_shows_longer_ones_too(requests_of, log_of_requests):
    requests = requests_of(count=30)
    log = log_of_requests(requests, lambda right: {2: 0.5, 4: 0.5})
    (_, row), _ = ([], judge(log, [parse_contender("fixed:neural:4")], COST, OPTIONS)[0]), None
    shown = next(r for r in row if r["policy"] == "fixed:neural:4" and r["workload"] == "all")
    rejected = (log.neural_accepted < log.neural_len).mean()
    assert shown["revealed_share"] > rejected
    assert shown["unsupported_share"] == 0.0
    assert 0 < shown["effective_decisions"] < shown["decisions"]


def emitted_by(log, spec, reach_factor=1.0):
    """Every estimate of emitted tokens per decision, as if propensities were off by a factor."""
    if reach_factor != 1.0:
        log = dataclasses.replace(log, reach=log.reach * reach_factor)
    outcomes = outcomes_of(log, plans_of_rule(log, parse_policy(spec).rule, 48), COST)
    sums = sums_of(log, outcomes, cells_of(log))
    totals = totals_of(sums, np.ones((1, len(log.recording))))
    return {
        name: float(values[0] / totals.decisions[0])
        for name, values in emitted_tokens(totals).items()
    }


@pytest.fixture(scope="module")
def many(request):
    from adaspec.trace.synthetic import Workload, synthesize

    kind = Workload("talk", (20, 40), (60, 90), 0.05, 5.0, 0.5, 0.75, 0.35)
    return list(synthesize(3, (kind,), 250, 8))


def knowing(right):
    """A policy that knows better than any feature: it drafts far where drafts are right."""
    return {1: 0.1, 4: 0.9} if right >= 2 else {1: 0.8, 4: 0.2}


def test_weights_undo_what_the_logging_policy_knew(many, log_of_requests):
    """The survival model is wrong here and the propensities are right: that suffices."""
    log = log_of_requests(many, knowing)
    truth = true_at(log, many, "fixed:neural:4")[0].mean()
    found = emitted_by(log, "fixed:neural:4")
    assert abs(found["direct"] - truth) > 0.08
    for name in ("ips", "snips", "dr"):
        assert found[name] == pytest.approx(truth, abs=0.05), name


def test_a_planted_mistake_in_the_propensities_shows(many, log_of_requests):
    """Weighing alone is then wrong; the doubly robust estimate rests on the model, which is right
    where lengths were drawn by chance alone."""
    log = log_of_requests(many, lambda right: {1: 0.5, 4: 0.5})
    truth = true_at(log, many, "fixed:neural:4")[0].mean()
    right, wrong = (emitted_by(log, "fixed:neural:4", factor) for factor in (1.0, 0.6))
    for name in ("direct", "ips", "snips", "dr"):
        assert right[name] == pytest.approx(truth, abs=0.04), name
    assert wrong["ips"] > truth + 0.3
    assert wrong["dr"] == pytest.approx(truth, abs=0.05)


@pytest.mark.parametrize("spec", ["fixed:ngram:6:2", "hybrid:3:8:0"])
def test_the_path_of_copies_is_that_of_a_replay(requests_of, log_of_requests, spec):
    requests = requests_of(count=20)
    log = log_of_requests(requests, lambda right: {2: 1.0})
    paths = walk_rule(log.recording, parse_policy(spec).rule, 48)
    found = estimates(log, spec)["path"]
    assert found["emitted_per_step"] == pytest.approx(paths.steps["emitted"].mean())


def test_the_path_of_the_logging_policy_is_the_log(requests_of, log_of_requests):
    log = log_of_requests(requests_of(count=20), lambda right: {3: 1.0})
    rows, notes = judge(log, [parse_contender("fixed:neural:3")], COST, OPTIONS)
    whole = {row["policy"]: row["estimates"] for row in rows if row["workload"] == "all"}
    shown, path = whole["logged"]["shown"], whole["fixed:neural:3"]["path"]
    assert path["tokens_per_s"] == pytest.approx(shown["tokens_per_s"])
    assert path["lift_over_logged"] == pytest.approx(0.0)
    assert whole["fixed:neural:3"]["dr"] is None
    assert "deterministic" in notes[0]


def test_the_path_elsewhere_is_near_the_true_one(many, log_of_requests):
    log = log_of_requests(many, lambda right: {0: 0.2, 2: 0.4, 5: 0.4})
    paths = walk_rule(build_recording(many, 8), parse_policy("fixed:neural:4").rule, 48)
    found = estimates(log, "fixed:neural:4")["path"]
    assert found["emitted_per_step"] == pytest.approx(paths.steps["emitted"].mean(), rel=0.03)
    low, high = found["emitted_per_step_ci95"]
    assert low < paths.steps["emitted"].mean() < high


def test_exploring_is_charged_what_it_costs(many, log_of_requests):
    log = log_of_requests(many, lambda right: {3: 0.9, 0: 0.1})
    rows, _ = judge(log, [], COST, OPTIONS)
    found = rows[0]["exploration"]
    assert found["explored_share"] == pytest.approx(0.1, abs=0.01)
    without = true_at(log, many, "fixed:neural:3")
    assert found["tokens_per_s_without"] == pytest.approx(
        without[0].sum() / without[1].sum(), rel=0.01
    )
    assert 0.0 < found["lost_share"] < 0.1


@pytest.mark.parametrize(
    ("lengths", "spec", "said"),
    [
        ({2: 1.0}, "fixed:neural:3", "shows 0 times whether neural token 3"),
        ({0: 1.0}, "fixed:neural:1", "shows 0 times whether neural token 1"),
        ({2: 1.0}, "hybrid-agree", "compares drafted tokens"),
        ({2: 1.0}, "budget:4", "cannot be judged by a logged trace"),
        ({2: 1.0}, "oracle:plan", "cannot be judged by a logged trace"),
        ({2: 1.0}, "fixed:neural:40", "at most 32 neural tokens"),
    ],
)
def test_a_policy_without_support_is_refused(requests_of, write, lengths, spec, said):
    folder = write(requests_of(count=20), lambda right: lengths)
    with pytest.raises(EvaluationError, match=said):
        evaluate_policies(folder, [spec])


def test_a_policy_that_drafts_where_the_log_never_did_is_refused(requests_of, log_of_requests):
    log = log_of_requests(requests_of(count=40), lambda right: {3: 1.0} if right else {0: 1.0})
    with pytest.raises(EvaluationError, match="of its decisions the logging policy would not"):
        judge(log, [parse_contender("fixed:neural:3")], COST, OPTIONS)


def test_logs_that_lack_what_is_needed_are_refused(requests_of, write):
    requests, lengths = requests_of(count=10), lambda right: {2: 1.0}
    with pytest.raises(EvaluationError, match="how many requests ran"):
        evaluate_policies(write(requests, lengths, running=None))
    texts = {"prompt_tokens": None, "output_tokens": None}
    with pytest.raises(EvaluationError, match="without their text"):
        evaluate_policies(write(requests, lengths, **texts))
    with pytest.raises(EvaluationError, match="--concurrency is of replays"):
        evaluate_policies(write(requests, lengths), concurrency=2)
    with pytest.raises(EvaluationError, match="--no-prefill is of replays"):
        evaluate_policies(write(requests, lengths), prefill=False)
    with pytest.raises(EvaluationError, match="--batching is of replays"):
        evaluate_policies(write(requests, lengths), batching="lockstep")


def test_names_that_a_log_does_not_have_are_refused(requests_of, write):
    folder = write(requests_of(count=10), lambda right: {2: 1.0})
    with pytest.raises(EvaluationError, match="no workload 'nosuch'"):
        evaluate_policies(folder, workload="nosuch")
    with pytest.raises(EvaluationError, match="no request 'nosuch/1' to exclude"):
        evaluate_policies(folder, exclude_requests="nosuch/1")


def test_no_speculation_stands_in_a_logs_report_once(requests_of, write):
    folder = write(requests_of(count=30), lambda right: {0: 0.1, 4: 0.9})
    rows = evaluate_policies(folder, ["none"], resamples=0).rows
    places = [(row["workload"], row["policy"]) for row in rows]
    assert len(places) == len(set(places))


def test_unknown_propensities_leave_what_needs_none(requests_of, write):
    unknown = {"propensity": None, "neural_propensity": None}
    folder = write(requests_of(count=30), lambda right: {4: 1.0}, **unknown)
    report = evaluate_policies(folder, ["fixed:neural:2"], resamples=5)
    row = next(row for row in report.rows if row["policy"] == "fixed:neural:2")
    given = {name for name, found in row["estimates"].items() if found}
    assert given == {"direct", "path"}
    assert "neural_propensity" in report.notes[0]


def test_a_report_is_shown_and_written(requests_of, write, tmp_path):
    folder = write(requests_of(count=30), lambda right: {0: 0.1, 4: 0.9})
    report = evaluate_policies(folder, ["fixed:neural:2"], resamples=5)
    assert "What exploring cost" in str(report)
    report.write(tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "<code>fixed:neural:2</code>" in page
