from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from heard import Heard
from test_distribution import check_distribution
from test_either_runner import check_arms, check_ring
from tiny_models import document, ids_of
from wandering import NEURAL_CAP, Wanderer, check_sound

from adaspec.policy.static import parse_policy

TOKENS = 32
CHUNKED = {"max_num_batched_tokens": 96, "max_num_seqs": 5, "block_size": 32}
THOROUGH = pytest.mark.thorough
HEADS_IN_TURN = ("dflash2", "dspark")
"""Heads of one pass whose tokens depend on those before."""


@pytest.mark.parametrize(
    "head",
    [
        *("eagle3", "dflash", "dspark", None),
        *(pytest.param(each, marks=THOROUGH) for each in ("eagle", "draft", "dflash2")),
    ],
)
def test_whatever_is_decided_leaves_the_output_as_it_was(served, prompts, truth, head):
    engine, taken = served(head), Counter[str]()
    for seed in (1, 2):
        wanderer = Wanderer(engine, seed, evidence=head is not None)
        assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
        check_sound(wanderer.session)
        taken.update(wanderer.taken)
    kinds = ("ngram",) if head is None else ("ngram", "neural", "splice")
    assert all(taken[kind] > 0 for kind in kinds), taken
    said = engine.runner.speculator.adaspec_reading.confidences[:NEURAL_CAP, 0]
    assert head is None or said.isfinite().all()


@THOROUGH
def test_a_model_that_drafts_for_itself_says_what_it_says_without(served, engines, prompts):
    expected = engines(target="mtp").greedy(prompts, TOKENS)
    engine = served("mtp", target="mtp")
    assert engine.runner.speculative_config.method == "mtp"
    wanderer = Wanderer(engine)
    assert engine.greedy(prompts, TOKENS) == expected
    check_sound(wanderer.session)
    assert min(wanderer.taken.values()) > 0, wanderer.taken


def test_arms_with_a_head_of_one_pass(serve, runner, prompts, truth, monkeypatch):
    check_arms(serve, "dflash", runner, prompts, truth, "dflash:3", monkeypatch)


def test_requests_that_come_and_go_in_mixed_batches(served, engines):
    draw, asked = np.random.default_rng(5), []
    for at in range(24):
        text = ids_of(document(3000 + at, int(draw.integers(1, 3))))
        asked.append(text[: int(draw.integers(12, len(text)))])
    expected = engines().greedy(asked, 12)
    engine = served("eagle3")
    wanderer = Wanderer(engine, 12)
    assert engine.greedy(asked, 12) == expected
    check_sound(wanderer.session)
    assert min(wanderer.taken.values()) > 3, wanderer.taken


@pytest.mark.parametrize(
    "head", ["eagle3", "dflash", *(pytest.param(each, marks=THOROUGH) for each in HEADS_IN_TURN)]
)
def test_it_is_left_by_the_kernels_that_accelerators_run(served, prompts, truth, monkeypatch, head):
    engine = served(head)
    monkeypatch.setattr("adaspec.vllm.session.drafting.KERNELS_ON_CPU", True)
    wanderer = Wanderer(engine)
    assert type(wanderer.session.drafting.predictor).__name__ == "FusedPredictor"
    assert engine.greedy(prompts[:3], 10) == truth(10)[:3]
    check_sound(wanderer.session)
    assert sum(wanderer.taken.values()) > 0


def test_prompts_read_in_pieces_and_prefix_hits(served, engines, prompts, truth):
    """While a long prompt is read in pieces and nothing else runs, no row is drafted for."""
    alone = [ids_of(document(70 + at, 14))[:250] for at in range(2)]
    expected = [one for each in alone for one in engines().greedy([each], 12)]
    engine = served("eagle3", enable_prefix_caching=True, **CHUNKED)
    wanderer = Wanderer(engine)
    for _ in range(2):
        assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    assert [one for each in alone for one in engine.greedy([each], 12)] == expected
    check_sound(wanderer.session)


@pytest.mark.parametrize("trims", [False, True])
def test_the_mode_changes_within_a_step_and_outputs_do_not(
    served, truth, prompts, mode_path, monkeypatch, trims
):
    engine = served("eagle3", trims=trims)
    session = Wanderer(engine).session
    heard = Heard(session)
    execute, schedule = engine.runner.execute_model, engine.scheduler.schedule
    words, scheduled, seen = ("serve", "off", "serve"), [0], []

    def write_and_schedule(*args):
        scheduled[0] += 1
        mode_path.write_text(words[scheduled[0] // 2 % len(words)])
        return schedule(*args)

    def execute_and_note(scheduler_output, *args, **kwargs):
        done = execute(scheduler_output, *args, **kwargs)
        if scheduler_output.total_num_scheduled_tokens:
            seen.append((session.mode, session._budget))
        return done

    monkeypatch.setattr(engine.scheduler, "schedule", write_and_schedule)
    monkeypatch.setattr(engine.runner, "execute_model", execute_and_note)
    assert engine.greedy(prompts, 24) == truth(24)
    assert {mode for mode, _ in seen} == {"serve", "off"}
    if trims:
        assert all(budget == 0 for mode, budget in seen if mode != "serve")
    assert any(before[0] == "off" and after[0] == "serve" for before, after in pairwise(seen))
    assert heard.total("drafted") > 0
    check_sound(session)


@pytest.mark.parametrize(
    ("head", "spec", "neural", "copied"),
    [
        ("eagle3", "fixed:neural:3", {3}, {0}),
        ("dflash", "hybrid-splice:3:8:2:1:4", {0, 2}, {0, 4, 8}),
        ("eagle3", "hybrid-splice:3:8:2:1:4", {0, 2}, {0, 4, 8}),
        (None, "fixed:ngram:5:2", {0}, {0, 5}),
    ],
)
def test_a_rule_drafts_what_it_says(served, prompts, truth, head, spec, neural, copied):
    engine = served(head)
    session = engine.put(parse_policy(spec))
    verified = Heard(session)["verified"]
    assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    check_sound(session)
    # The engine cuts a request's last draft.
    drafted = [
        (by_head, whole - by_head)
        for event in verified
        for by_head, whole in zip(event.neural_drafted, event.drafted, strict=True)
    ]
    assert max((by_head for by_head, _ in drafted), default=0) == max(neural)
    assert max((ngram for _, ngram in drafted), default=0) == max(copied)
    usual = [(by_head in neural, ngram in copied) for by_head, ngram in drafted]
    assert np.mean(usual) > 0.8, drafted


@THOROUGH
@pytest.mark.parametrize("head", ["eagle3", None])
def test_sampled_outputs_are_distributed_as_without_speculation(served, engines, head):
    """Two samples of 1,000 outputs each.

    With 8 degrees of freedom a sampler that moved a mass of 0.1 from outputs of probability 0.4
    would be found with probability 0.96.
    """
    engine = served(head, max_num_seqs=64)
    wanderer = Wanderer(engine, evidence=head is not None)
    check_distribution(engines, engine, 1000)
    assert sum(wanderer.taken.values()) > 100
    check_sound(wanderer.session)


def test_what_was_answered_is_copied_by_kernels(serve, prompts, truth, monkeypatch):
    monkeypatch.setattr("adaspec.vllm.session.drafting.KERNELS_ON_CPU", True)
    engine, session = serve(None, "fixed:ngram:8:2", ring_tokens=2048)
    assert type(session.drafting.predictor).__name__ == "FusedPredictor"
    check_ring(engine, session, prompts[:2], truth(TOKENS)[:2])  # the interpreter takes its time


def test_a_ring_that_is_full_aborts_and_preemption_are_no_harm(served, prompts, truth):
    cramped = {"num_gpu_blocks_override": 14, "block_size": 32, "enable_prefix_caching": False}
    engine = served("eagle3", **cramped)
    session = Wanderer(engine, ring_tokens=1024).session
    for _ in range(4):  # of somebody else: there is room for three
        session.ring.take([np.arange(600) % 90])
    assert session.ring.ring.moves
    engine.abort(prompts, TOKENS, steps=8)
    for _ in range(3):
        assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    assert engine.preempted > 0
    check_sound(session)
