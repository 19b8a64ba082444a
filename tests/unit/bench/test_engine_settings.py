"""Which methods take part at which settings."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic import synthesize, write_synthetic

from adaspec.bench.engine.client import Call
from adaspec.bench.engine.methods import (
    METHODS,
    BenchmarkOptions,
    Drafter,
    adaspec_candidate,
    candidate_of,
    unavailable,
)
from adaspec.bench.engine.settings import (
    UsualSettings,
    candidates_at,
    find_settings,
    shortened,
)
from adaspec.errors import BenchError
from adaspec.evaluate import hindsight
from adaspec.replay.contender import parse_contender

HEAD = Drafter("H", "eagle3")


def asked(*methods):
    return BenchmarkOptions("M", (), Path("out"), methods=methods)


def test_stock_methods_get_vllms_own_words():
    assert candidate_of("none", "none", None).config is None
    assert candidate_of("ngram", "fixed:ngram-vllm:6:2:5", None).config == {
        "method": "ngram",
        "num_speculative_tokens": 6,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    }
    assert candidate_of("neural", "fixed:neural:4", HEAD).config == {
        "method": "eagle3",
        "model": "H",
        "num_speculative_tokens": 4,
    }


def test_adaspecs_candidates_serve_by_the_plug_in():
    found = candidate_of("hybrid-splice", "hybrid-splice:4:20:2:2:5", HEAD)
    assert found.config == {
        "method": "adaspec",
        "model": "H",
        "policy": "hybrid-splice:4:20:2:2:5",
    }
    chosen = adaspec_candidate(None, HEAD, "cost.json")
    assert chosen.config == {"method": "adaspec", "model": "H", "cost": "cost.json"}


def test_adaspec_is_told_what_the_drafter_is_where_the_user_had_to_say():
    head = Drafter("H", "eagle", given_method="eagle")
    for candidate in (
        candidate_of("hybrid-splice", "hybrid-splice", head),
        adaspec_candidate(None, head, None),
    ):
        assert candidate.config["draft_method"] == "eagle"
        assert candidate.config["model"] == "H"
    assert candidate_of("neural", "fixed:neural:3", head).config["method"] == "eagle"
    assert "draft_method" not in adaspec_candidate(None, HEAD, None).config


def test_what_cannot_run_here_is_named_with_its_reason(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = unavailable(METHODS, None)
    assert "arctic-inference" in found["suffix"]
    assert "--draft" in found["neural"]
    assert set(found) == {"suffix", "neural", "hybrid-splice"}


def test_a_method_that_needs_a_head_is_refused_without_one():
    with pytest.raises(BenchError, match="name one by --draft"):
        candidate_of("neural", "fixed:neural:3", None)


def test_no_speculation_always_runs_and_what_is_absent_does_not():
    found = candidates_at(
        4, asked("adaspec", "neural", "suffix"), {"suffix": "x"}, UsualSettings(), HEAD
    )
    assert [each.method for each in found] == ["none", "adaspec", "neural"]


def test_suffix_runs_at_its_defaults_and_at_one_other():
    found = candidates_at(4, asked("suffix"), {}, UsualSettings(), None)
    assert [each.runner_up for each in found if each.method == "suffix"] == [False, True]


@pytest.fixture(scope="module")
def ranked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces") / "made"
    write_synthetic(folder, 0, requests_per_workload=4)
    whole = hindsight.grid_of
    with pytest.MonkeyPatch.context() as patch:
        # Thousands of settings take half a minute, and a few dozen are ranked as well.
        patch.setattr(hindsight, "grid_of", lambda *each: _thinned(whole(*each)))
        options = replace(asked(), traces=(folder,), concurrency=(1, 4), max_tokens=64)
        return find_settings(options, frozenset(), lambda *_: None)


def _thinned(grid):
    return [
        setting
        for at, setting in enumerate(grid)
        if at % 200 == 0 or setting.spec == "none" or setting.spec.startswith("fixed:neural")
    ]


def test_settings_are_ranked_by_what_the_evaluator_expects(ranked):
    for method in ("ngram", "neural", "hybrid-splice"):
        for load in (1, 4):
            best, second = (
                ranked.expected(spec, "all", load) for spec in ranked.ranked(method, load)
            )
            assert best >= second > 0
    assert ranked.expected("none", "all", 1) == 1.0


def test_every_setting_becomes_a_candidate_with_a_runner_up(ranked):
    found = candidates_at(4, asked(*METHODS), {}, ranked, HEAD)
    assert len({each.name for each in found}) == len(found)
    second = [each.method for each in found if each.runner_up]
    assert sorted(second) == ["hybrid-splice", "neural", "ngram", "suffix"]


def test_what_a_trace_does_not_hold_is_not_expected(ranked):
    assert ranked.expected(None, "all", 1) is None
    assert ranked.expected("fixed:neural:3", "no such workload", 1) is None
    assert ranked.expected("policies/nowhere", "all", 1) is None


def test_what_is_expected_of_a_round_is_what_its_very_requests_would_do(ranked):
    recording = ranked.player.recording
    by_place = {at: prompt for prompt, at in ranked.prompts.items()}
    order = np.array([3, 0, 2, 1, 5, 4], np.int32)
    calls = [Call("any", str(at), by_place[at], 64) for at in order.tolist()]
    player = ranked.player
    speeds = [
        player.play(parse_contender(spec), order, 4).tokens_per_s
        for spec in ("fixed:neural:3", "none")
    ]
    found = ranked.expected("fixed:neural:3", "all", 4, [calls])
    assert found == pytest.approx(speeds[0] / speeds[1])
    assert max(recording.columns.length) <= 64
    # Tokens over seconds of all rounds, as they are measured.
    rounds = [calls[:4], calls]
    runs = [
        [player.play(parse_contender(spec), places, 4) for places in (order[:4], order)]
        for spec in ("fixed:neural:3", "none")
    ]
    mine, none = (sum(r.tokens for r in each) / sum(r.time_s for r in each) for each in runs)
    assert ranked.expected("fixed:neural:3", "all", 4, rounds) == pytest.approx(mine / none)
    stranger = Call("any", "x", (1, 2, 3), 64)
    drawn = ranked.expected("fixed:neural:3", "all", 4)
    assert ranked.expected("fixed:neural:3", "all", 4, [[*calls, stranger]]) == drawn != found


def test_a_shortened_request_is_the_same_up_to_there():
    request = next(iter(synthesize(0, requests_per_workload=1)))
    short = shortened(request, 7)
    assert len(short.output_tokens) == len(short.neural_accepted) == 7
    assert len(short.drafted_tokens) == len(short.confidences) == 7
    assert short.paired
    assert shortened(request, 10_000).output_tokens.tolist() == request.output_tokens.tolist()
