"""The ablation table, and how a card and a report show it."""

from __future__ import annotations

import pytest
from tiny_training import OPTIONS

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.evaluate.evaluation import evaluate
from adaspec.evaluate.options import silent
from adaspec.replay.recording import build_recording
from adaspec.train.ablation_table import ablation_table
from adaspec.train.ablations import ABLATIONS
from adaspec.train.card import ablations


@pytest.fixture(scope="module")
def few_enter():
    """Orders of few requests: some ablations are replayed step by step in Python."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("adaspec.replay.orders.entries", lambda concurrency: 16)
        yield


@pytest.fixture(scope="module")
def report(trained, few_enter):
    return evaluate(trained.corpus.held_out, [trained.policy], H100_LLAMA_3_1_8B, OPTIONS)


@pytest.fixture(scope="module")
def found(trained, report, few_enter):
    """A table for which nothing was trained again: the policy stands in for all others."""
    recording = build_recording(
        trained.corpus.held_out.requests, trained.corpus.held_out.neural_cap
    )
    asked = []

    def retrained(ablation):
        asked.append(ablation.name)
        return trained.policy

    table = ablation_table(
        recording, report, trained.policy, retrained, H100_LLAMA_3_1_8B, OPTIONS, silent
    )
    return table, asked


def lifts(table):
    return {row["name"]: row["lift"] for row in table["rows"]}


def test_every_part_has_a_row_between_the_policy_and_the_simpler_families(found):
    table, asked = found
    names = [row["name"] for row in table["rows"]]
    assert names == ["the policy", *(a.name for a in ABLATIONS), "budget:K", "hybrid-splice"]
    assert asked == [a.name for a in ABLATIONS if a.played is None]
    assert all(set(row["lift"]) == {"1", "4"} for row in table["rows"])


def test_lifts_are_paired_with_the_reports(found, report):
    table = lifts(found[0])
    entries = {
        str(entry["concurrency"]): entry["lift_over_static_best"]
        for entry in report["headline"]
        if entry["workload"] == "all"
    }
    assert table["the policy"] == pytest.approx(entries, abs=1e-6)
    # The same policy in the same orders: what nothing was taken from is no worse for it.
    assert table["no splicing"] == table["the policy"]
    # Alone in its batch, a request decides as the policy would.
    assert table["no batch planning"]["1"] == pytest.approx(table["the policy"]["1"], abs=1e-6)


def test_no_simpler_family_beats_the_best_of_all_static_rules(found):
    assert all(lift <= 0 for lift in lifts(found[0])["hybrid-splice"].values())


def test_a_card_shows_ablations_only_where_there_are_some(found):
    assert list(ablations({})) == []
    text = "\n".join(ablations({"ablations": found[0]}))
    assert text.startswith("## Ablations")
    assert "| no history |" in text
    both = "\n".join(ablations({"ablations": found[0], "cross_fitted": {"ablations": found[0]}}))
    assert both.index("cross-fitted\n") < both.index("on the requests kept back\n")
