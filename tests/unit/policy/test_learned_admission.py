"""Never slower: a model that is wrong about everything soon costs next to nothing."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from synthetic import WORKLOADS, synthesize

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.cost.model import line
from adaspec.draft.index import Matches
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.admission import update_drafter
from adaspec.policy.planner.memory import LONGEST_NEURAL, LONGEST_NGRAM, LONGEST_SPLICE
from adaspec.policy.protocol import Arrival, Batch, Setup
from adaspec.predict.model import Model
from adaspec.predict.survival import Curves
from adaspec.predict.tables import packed
from adaspec.replay.learned import run_learned
from adaspec.replay.recording import Recording, build_recording
from adaspec.replay.result import Result
from adaspec.trace.schema import Request
from adaspec.train.heads import constant_heads

CAP = 48
NONE = np.empty(0, np.float32)
EMPTY = packed(np.empty(0, np.uint64), NONE, NONE, NONE, (0, 0, 0, 0), 1)


def optimist(*, evidence: bool) -> LearnedPolicy:
    """Says at every position that both drafters are right seven times in ten."""
    groups = ("before", "splice", "evidence") if evidence else ("before", "splice")
    networks = {group: constant_heads(group, 0.7) for group in groups}
    curves = {
        name: Curves(np.empty(0), np.append(1.0, 0.8 ** np.arange(longest))[None])
        for name, longest in (
            ("ngram", LONGEST_NGRAM),
            ("neural", LONGEST_NEURAL),
            ("splice", LONGEST_SPLICE),
        )
    }
    return LearnedPolicy("optimist", Model(networks, curves, EMPTY), {}, CAP, 8)


def recording_of(requests: list[Request], *, evidence: bool) -> Recording:
    if not evidence:
        requests = [replace(r, drafted_tokens=None, confidences=None) for r in requests]
    return build_recording(requests, 8)


def speeds(
    recording: Recording, policy: LearnedPolicy, concurrency: int, first: int, entries: int
) -> tuple[float, float, Result]:
    """Throughput over that of `none` before and after the first entries have left."""
    rng = np.random.default_rng(concurrency)
    passes = -(-entries // len(recording))
    order = np.concatenate([rng.permutation(len(recording)) for _ in range(passes)])[:entries]
    order = order.astype(np.int32)
    nobody = replaced(policy)
    runs = [
        run_learned(recording, who, order[:until], concurrency, H100_LLAMA_3_1_8B, CAP)
        for who in (policy, nobody)
        for until in (first, entries)
    ]
    assert runs[0].steps >= 100

    def ratio(a: Result, b: Result, c: Result, d: Result) -> float:
        mine = (b.tokens - a.tokens) / (b.time_s - a.time_s)
        return float(mine / ((d.tokens - c.tokens) / (d.time_s - c.time_s)))

    return runs[0].tokens_per_s / runs[2].tokens_per_s, ratio(*runs), runs[1]


def replaced(policy: LearnedPolicy) -> LearnedPolicy:
    """One that never drafts anything."""
    return LearnedPolicy("nobody", policy.model, {}, 0, 0)


def hopeless(rng: np.random.Generator) -> Request:
    """Tokens recur but no pair of them does, so every match of a look-up is wrong."""
    kinds, length = 97, int(rng.integers(200, 600))
    visits, text = [0] * kinds, [int(rng.integers(kinds))]
    while len(text) < length:
        visits[text[-1]] += 1
        text.append((text[-1] + visits[text[-1]]) % kinds)
    tokens = np.array(text, np.int32)
    prompt, output = np.split(tokens, [length // 2])
    accepted = np.zeros(len(output), np.int16)
    accepted[0] = -1
    drafted = np.repeat((output[:, None] + 1) % kinds, 8, axis=1).astype(np.int32)
    drafted[0] = -1
    return Request("hopeless", str(rng.integers(1 << 40)), prompt, output, accepted, drafted)


@pytest.mark.parametrize("evidence", [False, True], ids=["no evidence", "evidence"])
@pytest.mark.parametrize("concurrency", [1, 8, 32, 128])
def test_where_nothing_is_ever_right_an_optimist_is_soon_no_slower_than_none(
    concurrency: int, evidence: bool
) -> None:
    requests = [hopeless(np.random.default_rng([3, number])) for number in range(40)]
    recording = recording_of(requests, evidence=evidence)
    # About 200 steps a request: what is left out is the first 500 steps or a little more.
    first = max(4, 4 * concurrency)
    _, after, _ = speeds(recording, optimist(evidence=evidence), concurrency, first, 8 * first)
    assert after >= 0.98


@pytest.mark.parametrize("concurrency", [1, 32])
def test_where_drafters_are_good_admission_takes_nothing_away(concurrency: int) -> None:
    requests = list(synthesize(4, WORKLOADS, requests_per_workload=5))
    recording = recording_of(requests, evidence=True)
    before, after, run = speeds(
        recording,
        optimist(evidence=True),
        concurrency,
        max(4, 2 * concurrency),
        6 * concurrency + 10,
    )
    assert before > 1.2
    assert after > 1.2
    assert run.neural_steps > 0.5 * run.steps


CPU = line(
    "two cores", 0.036, 0.003, (6,), context_s=6e-6, forward_s=0.005, forward_context_s=1.3e-6
)


def test_at_a_load_at_which_a_drafter_never_pays_nobody_enters_with_it_or_keeps_it() -> None:
    policy = optimist(evidence=False)
    for rows, wanted in ((1, True), (4, True), (32, False), (128, False)):
        policy.start(Setup(CPU, CAP, 8, 128, True, True))
        assert [policy.admit(Arrival(slot, 200, rows)) for slot in range(rows)] == [wanted] * rows
    policy.start(Setup(CPU, CAP, 8, 128, True, True))
    assert policy.admit(Arrival(0, 200, 1))
    assert policy.keep(batch_of(1, 1))
    assert not policy.admit(Arrival(1, 200, 32))
    assert not policy.keep(batch_of(32, 1))
    # Had the others left meanwhile, it would have paid.
    assert policy.keep(batch_of(1, 1))


def batch_of(rows: int, holders: int) -> Batch:
    nothing = np.zeros(rows, np.int32)
    return Batch(
        slots=np.arange(rows, dtype=np.int32),
        prompt_tokens=nothing + 200,
        position=nothing + 10,
        holds_neural=np.arange(rows) < holders,
        matches=Matches(*(nothing.copy() for _ in fields(Matches))),
        context=None,  # type: ignore[arg-type]
    )


def test_a_probe_holds_the_drafter_to_its_end_and_probes_take_a_small_share_of_the_steps() -> None:
    policy = optimist(evidence=False)
    rows, answer, context, rate = 32, 120, 32 * 210, 300.0
    policy.start(Setup(CPU, CAP, 8, rows, True, True))
    memory, costs = policy.planner.memory, CPU.constants()
    assert not policy.admit(Arrival(0, 200, rows))
    held = probes = left = 0
    steps = 20_000
    for step in range(steps):
        holders = int(left > 0)
        update_drafter(memory, costs, rate, rows, holders, context, 0, 0.0)
        held += holders
        left -= holders
        if holders:
            assert policy.keep(batch_of(rows, 1))
        elif step % 4 == 0 and policy.admit(Arrival(step % rows, 200, rows)):
            left = answer
            probes += 1
    assert probes >= 3
    assert held / steps < 0.06


@pytest.mark.parametrize(("rows", "soon"), [(3, False), (8, True)])
def test_a_drafter_given_up_alone_is_soon_tried_at_another_load(rows: int, soon: bool) -> None:
    """At one request, a GPU waits for the host, and a forward takes longer than at more."""
    policy = optimist(evidence=False)
    policy.start(Setup(H100_LLAMA_3_1_8B, CAP, 8, 32, True, True))
    memory, costs = policy.planner.memory, H100_LLAMA_3_1_8B.constants()
    assert policy.admit(Arrival(0, 200, 1))
    for _ in range(1000):
        update_drafter(memory, costs, 280.0, 1, 1, 300, 0, 0.0)
    assert not policy.admit(Arrival(0, 200, 1))
    for _ in range(250):
        update_drafter(memory, costs, 2000.0, rows, 0, rows * 300, 0, 0.0)
    assert policy.admit(Arrival(1, 200, rows)) == soon
    # A probe is one request, and the next one comes after a long rest.
    assert not policy.admit(Arrival(2, 200, rows))
    for _ in range(250):
        update_drafter(memory, costs, 2000.0, rows, 0, rows * 300, 0, 0.0)
    assert not policy.admit(Arrival(3, 200, rows))


def test_a_prompt_that_costs_more_to_read_than_the_drafter_brings_goes_without() -> None:
    policy = optimist(evidence=False)
    policy.start(Setup(replace(CPU, draft_prompt_s=2e-4), CAP, 8, 8, True, True))
    assert [policy.admit(Arrival(slot, 150, 4)) for slot in range(4)] == [True] * 4
    assert not policy.admit(Arrival(4, 20_000, 4))
    policy.start(Setup(CPU, CAP, 8, 8, True, True))
    assert policy.admit(Arrival(0, 20_000, 4))


def test_a_few_steps_that_bring_nothing_do_not_take_the_drafter_from_many_but_more_do() -> None:
    policy, rows, context = optimist(evidence=False), 128, 128 * 210
    policy.start(Setup(H100_LLAMA_3_1_8B, CAP, 8, rows, True, True))
    memory, costs = policy.planner.memory, H100_LLAMA_3_1_8B.constants()
    assert all(policy.admit(Arrival(slot, 200, rows)) for slot in range(rows))
    kept = []
    for step in range(60):
        update_drafter(memory, costs, 10_000.0, rows, rows, context, 0, 0.0)
        kept.append(policy.admit(Arrival(step, 200, rows)) or policy.keep(batch_of(rows, rows)))
    assert all(kept[:4])
    assert not any(kept[40:])
