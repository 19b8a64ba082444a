"""The grids of static settings: complete, and flagged only where more values would be legal."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from adaspec.evaluate.hindsight import FIXED, HYBRID, NONE, SPLICE, grid_of
from adaspec.policy.spec import parse_policy
from adaspec.replay.recording import build_recording


@pytest.fixture(scope="module")
def recording(requests_of):
    return build_recording(requests_of(count=1), 8)


@pytest.fixture(scope="module")
def bare(requests_of):
    """A recording whose trace lacks the drafted tokens."""
    kept = [replace(r, drafted_tokens=None, confidences=None) for r in requests_of(count=1)]
    return build_recording(kept, 8)


def heads(found):
    return Counter(":".join(w for w in each.spec.split(":") if not w.isdigit()) for each in found)


def test_without_drafted_tokens_there_are_6758_grid_of(bare):
    found = grid_of(bare)
    assert heads(found) == {
        "none": 1,
        "fixed:ngram": 6 * 4,
        "fixed:neural": 8,
        "hybrid": 7 * 7 * 5,
        "hybrid-splice": 9 * 5 * 4 * 6 * 6,
    }
    assert len(found) == 6_758


def test_with_drafted_tokens_405_more_compare_them(recording):
    assert len(grid_of(recording)) == 6_758 + 405
    assert heads(grid_of(recording))["hybrid-agree"] == 405


def test_no_setting_comes_twice_and_each_spec_names_its_own_rule(recording):
    found = grid_of(recording)
    assert len({each.spec for each in found}) == len(found)
    for each in found:
        assert parse_policy(each.spec).rule == each.rule
        assert each.policy().name == each.spec


def test_families_follow_the_head(recording):
    families = {(each.spec.partition(":")[0], each.family) for each in grid_of(recording)}
    assert families == {
        ("none", NONE),
        ("fixed", FIXED),
        ("hybrid", HYBRID),
        ("hybrid-splice", SPLICE),
        ("hybrid-agree", SPLICE),
    }


@pytest.mark.parametrize("cap", [1, 3])
def test_a_short_neural_cap_leaves_out_what_it_cannot_replay(requests_of, cap):
    found = grid_of(build_recording(requests_of(count=1, cap=cap), cap))
    assert max(each.rule.neural_len for each in found) == cap
    assert heads(found)["fixed:neural"] == cap
    assert heads(found)["hybrid-splice"] == 9 * 5 * cap * 6 * 6


@pytest.mark.parametrize(
    ("spec", "edge"),
    [
        ("none", ()),
        ("fixed:neural:1", ()),
        ("fixed:neural:4", ()),
        ("fixed:neural:8", ("K=8",)),
        ("fixed:ngram:3:1", ("K=3",)),
        ("fixed:ngram:8:5", ("MIN=5",)),
        ("hybrid:4:16:0", ()),
        ("hybrid:10:32:4", ("M=10", "KN=32", "KE=4")),
        ("hybrid-splice:4:20:2:2:5", ()),
        ("hybrid-splice:2:20:1:1:1", ("M=2",)),
        ("hybrid-splice:32:48:4:10:15", ("M=32", "KN=48", "KE=4", "MX=10", "KX=15")),
    ],
)
def test_an_edge_is_an_end_of_the_grid_beyond_which_values_are_legal(recording, spec, edge):
    (found,) = [each for each in grid_of(recording) if each.spec == spec]
    assert found.edge == edge
