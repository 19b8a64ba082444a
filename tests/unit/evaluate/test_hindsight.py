from itertools import product

import numpy as np
import pytest

from adaspec.cost.load import H100_LLAMA_3_1_8B
from adaspec.evaluate.hindsight import Family, families, fastest, hindsight
from adaspec.evaluate.options import Options, silent
from adaspec.evaluate.traffic import runs_of
from adaspec.policy.static import parse_policy, rule_spec
from adaspec.replay.player import Player
from adaspec.replay.recording import build_recording

CELLS = [(None, 1), (None, 4)]
COST = H100_LLAMA_3_1_8B
NEURAL = ["fixed:neural", "budget", "trtllm", "hybrid", "hybrid-splice"]


def heads(neural_cap):
    return [family.head for family in families(neural_cap)]


def test_no_family_drafts_deeper_than_the_trace_knows(requests_of):
    assert heads(0) == ["none", "fixed:ngram", "online"]
    assert heads(1) == heads(8) == [*heads(0), *NEURAL]
    for neural_cap in (1, 2, 5, 12):
        player = Player(build_recording(requests_of(count=1, cap=neural_cap), neural_cap), COST, 48)
        for family in families(neural_cap):
            corners = product(*((ladder[0], ladder[-1]) for ladder in family.ladders))
            for values in (*corners, *family.starts):
                player.check(family.policy(values))
                assert all(
                    each in ladder for each, ladder in zip(values, family.ladders, strict=True)
                )


@pytest.mark.parametrize("family", families(8), ids=lambda family: family.head)
@pytest.mark.parametrize("seed", range(4))
def test_the_search_climbs_to_the_peak_from_wherever_it_starts(family, seed):
    rng, asked = np.random.default_rng(seed), []
    top = [int(rng.choice(ladder)) for ladder in family.ladders]
    peak = rule_spec(family.head, *top)

    def speed(policy):
        asked.append(policy.name)
        words = policy.name.removeprefix(family.head).split(":")[1:]
        return -sum(abs(int(word) - value) for word, value in zip(words, top, strict=True))

    found = fastest(family, speed)
    assert (found.policy.name, found.score) == (peak, 0)
    assert found.tried == len(asked) == len(set(asked))


def test_the_last_rounds_try_all_neighbours_together():
    """Off one diagonal there is nothing, so no single number leads away from the start."""
    family = Family("fixed:ngram", ((2, 3, 4, 5), (1, 2, 3, 4)), ((2, 1),))

    def speed(policy):
        copied, least = map(int, policy.name.split(":")[2:])
        return float(copied) if copied == least + 1 else 0.0

    assert fastest(family, speed).policy.name == "fixed:ngram:5:4"


@pytest.mark.parametrize("engine", ["sync", "async"])
def test_a_row_is_the_fastest_of_all_settings_that_it_may_show(requests_of, engine):
    player = Player(build_recording(requests_of(count=3), 8), COST, 20, engine=engine)
    runs = {cell: runs_of(player.recording, cell, Options(orders=2)) for cell in CELLS}
    winners, tried = hindsight(player, runs, Options(jobs=1), silent)
    assert tried > 500
    for drawn, won in zip(runs.values(), winners.values(), strict=True):

        def speed(policy, drawn=drawn):
            return np.mean([player.play(policy, *run).tokens_per_s for run in drawn])

        assert list(won) == ["vllm:best", "trtllm:K", "online:K", "static:best"]
        for row, among in (
            ("vllm:best", ("none", "fixed:ngram:8:3", *each("fixed:neural"), *each("budget"))),
            ("trtllm:K", each("trtllm")),
            ("online:K", ("online:4", "online:32")),
            ("static:best", ("none", *each("fixed:neural"), "hybrid:3:20:3", "hybrid-splice")),
        ):
            assert speed(won[row]) >= max(speed(parse_policy(spec)) for spec in among)
            tried_s = [run.tokens_per_s for run in player.trials(drawn)(won[row])]
            assert speed(won[row]) == pytest.approx(np.mean(tried_s))


def each(head):
    return [f"{head}:{k}" for k in range(1, 9)]
