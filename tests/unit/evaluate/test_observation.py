"""What a report watches step by step: its sums, its sample, and what it tells of a step."""

from __future__ import annotations

import numpy as np
import pytest

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.evaluate import observation
from adaspec.evaluate.evaluation import player_of
from adaspec.evaluate.observation import observe, sample
from adaspec.evaluate.options import Options
from adaspec.evaluate.selection import Selection, content_hash
from adaspec.replay.contender import parse_contender
from adaspec.replay.orders import draw_orders

OPTIONS = Options(
    concurrency=(1, 4), orders=1, resamples=0, jobs=1, prefill=False, free_decisions=True
)
SPECS = ("fixed:neural:3", "hybrid-splice:2:8:2:1:4", "oracle:plan")


@pytest.fixture(scope="module")
def player(requests_of):
    selection = Selection(tuple(requests_of(8)), 8, ("t",), "target", "drafter", True)
    return player_of(selection, [], H100_LLAMA_3_1_8B, OPTIONS)


@pytest.fixture(scope="module")
def seen(player):
    named = [parse_contender(spec) for spec in SPECS]
    row = {"policy": "static:best", "detail": {"spec": "hybrid:2:8:2"}}
    rows = [row | {"workload": "all", "concurrency": load} for load in (1, 4)]
    return observe(player, named, rows, OPTIONS)


def test_every_cell_has_the_losses_of_every_policy_and_of_the_best_static_rule(seen):
    cells = {(loss.workload, loss.concurrency, loss.policy) for loss in seen.losses}
    watched = (*SPECS[:2], "static:best")
    assert {cell for cell in cells if cell[0] == "all"} == {
        ("all", load, name) for load in (1, 4) for name in watched
    }
    assert {cell[0] for cell in cells} == {"all", "edits", "talk"}
    assert {loss.spec for loss in seen.losses if loss.policy == "static:best"} == {"hybrid:2:8:2"}
    assert seen.unwatched == ("oracle:plan",)


def test_the_parts_add_up_to_the_gap(seen):
    for loss in seen.losses:
        assert min(loss.parts.values()) >= 0
        total = loss.least_s + sum(loss.parts.values()) + loss.rest_s
        assert total == pytest.approx(loss.token_s)
        assert loss.token_s >= loss.least_s
        if loss.concurrency == 1:  # nothing is shared: no time is left over
            assert loss.rest_s == pytest.approx(0, abs=1e-12)
            assert loss.reference_token_s >= loss.least_s


def test_watching_changes_no_figure(player, seen):
    order = draw_orders(player.recording, None, 4, OPTIONS.seed, 1)[0]
    for spec in SPECS[:2]:
        played = player.play(parse_contender(spec), order, 4)
        (loss,) = (
            each
            for each in seen.losses
            if (each.workload, each.concurrency) == ("all", 4) and each.policy == spec
        )
        assert loss.token_s == pytest.approx(1 / played.tokens_per_s)


def test_the_sample_is_each_workloads_least_hashes_whatever_the_order(player):
    requests = player.recording.requests
    least = {
        workload: sorted(content_hash(r) for r in requests if r.workload == workload)[:3]
        for workload in ("edits", "talk")
    }
    rng = np.random.default_rng(0)
    for _ in range(5):
        order = np.concatenate([rng.permutation(len(requests)), np.zeros(4, int)]).astype(np.int32)
        chosen = sample(player.recording, order, 4)
        for workload, hashes in least.items():
            of_workload = [
                requests[order[e]] for e in chosen if requests[order[e]].workload == workload
            ]
            assert sorted(map(content_hash, of_workload)) == hashes


def test_steps_of_a_passage_follow_each_other_to_the_end(seen):
    assert len(seen.passages) == 2 * 3 * 2 * 3  # loads, policies, workloads, requests
    for passage in seen.passages:
        request = seen.requests[passage.request]
        position = 1
        for step in passage.steps:
            assert step["position"] == position
            assert step["accepted"] <= step["neural_len"] + step["ngram_len"]
            assert step["emitted"] <= step["accepted"] + 1
            right = request.output_tokens[position : position + step["candidate_right"]].tolist()
            shown = min(len(right), len(step["candidate"]))
            assert step["candidate"][:shown] == right[:shown]
            position += step["emitted"]
        assert position == len(request.output_tokens)


def test_steps_are_limited_evenly(seen, player, monkeypatch):
    monkeypatch.setattr(observation, "MAX_STEPS", 300)
    kept = observation._kept(seen.passages, player.recording)
    assert 0 < sum(len(passage.steps) for passage in kept) <= 300
    keys = [(p.concurrency, p.policy, seen.requests[p.request].workload) for p in kept]
    counts = [keys.count(key) for key in set(keys)]
    assert len(set(keys)) == 12 and max(counts) - min(counts) <= 1
