"""How long a step's decision takes on this machine, by the number of requests.

    python eval/decide.py                           # or: make bench
    python eval/decide.py --policy DIR --json

A step is one of a server whose host decides: it learns what came of the last drafts, looks up,
predicts, reads a draft of three tokens, each right in six cases of ten, and settles what is
verified. Requests are made up, about half of them find a match, and caches are warm. The two
constants of a cost file, `decide_s` and `decide_per_row_s`, are a line through the medians.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls

from adaspec.cost.load import DEFAULT, load_cost
from adaspec.kernels.batch import Batch
from adaspec.policy.artifact import shipped_policies
from adaspec.policy.protocol import LearnedPolicy, Setup, load_policy
from adaspec.trace.schema import CONFIDENCES
from adaspec.vllm.events import DraftedStep, VerifiedStep
from adaspec.vllm.session.decider import BatchDecider
from adaspec.vllm.session.drafting import Drafting

Ints = NDArray[np.int32]
WARM_UP = 20
"""Steps that are not timed, in which code is loaded and caches and branch predictors learn."""
DRAFTED, VOCABULARY, CONTEXT = 3, 32_000, 4096
BATCHES = (1, 8, 32, 128)


def measured(policy: LearnedPolicy, batch: int, steps: int) -> dict[str, Any]:
    """Microseconds of a step of so many requests: the median, and those of its three parts."""
    gc.collect()
    gc.disable()
    try:
        seconds = list(made_up_steps(policy, batch, CONTEXT, WARM_UP + steps))
    finally:
        gc.enable()
    us = 1e6 * np.array([parts for parts, _ in seconds[WARM_UP:]])
    before_us, read_us, after_us = np.median(us, axis=0)
    return {
        "policy": policy.name,
        "batch": batch,
        "median_us": float(np.median(us.sum(axis=1))),
        "p99_us": float(np.quantile(us.sum(axis=1), 0.99)),
        "before_us": float(before_us),
        "read_us": float(read_us),
        "after_us": float(after_us),
    }


def constants(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The seconds of a decision and of each of its rows, of least relative error."""
    batch, time_us = np.array([(row["batch"], row["median_us"]) for row in rows], float).T
    design = np.stack([1 / time_us, batch / time_us], axis=1)
    fixed, per_row = nnls(design, np.ones(len(rows)))[0] * 1e-6
    return {"decide_s": float(fixed), "decide_per_row_s": float(per_row)}


def made_up_steps(
    policy: LearnedPolicy, batch: int, tokens: int, steps: int
) -> Iterator[tuple[tuple[float, float, float], Ints]]:
    """Decide for requests that decode together, whose prompts have so many tokens.

    Of each step it gives the seconds before drafting, of reading the draft and after that, and how
    many tokens of each row came before it.
    """
    policy = copy.copy(policy)  # which shares the model, but not what is kept from step to step
    cost = (policy.manifest and policy.manifest.cost_model) or load_cost(DEFAULT)
    caps = policy.cap, policy.neural_cap
    setup = Setup(cost, *caps, slots=batch, shows_tokens=True, shows_confidences=True)
    host = BatchDecider(policy, setup)
    texts = made_up_texts(batch, tokens, (DRAFTED + 1) * (steps + 1))
    drafting = Drafting(policy, setup, int(texts.max()) + 1, torch.device("cpu"))
    slots, holds = np.arange(batch, dtype=np.int32), np.ones(batch, np.bool_)
    drafting.enter(slots, np.zeros(batch, np.int32))
    prompts = np.full(batch, tokens, np.int32)
    known, counts = prompts.copy(), np.ones(batch, np.int32)
    drafted = min(DRAFTED, policy.neural_cap)
    rng = np.random.default_rng([tokens, batch])
    before: DraftedStep | None = None
    for _ in range(steps):
        known = known + counts
        truth = np.take_along_axis(texts, known[:, None] + np.arange(drafted), axis=1)
        right = np.minimum(rng.geometric(0.4, batch) - 1, drafted)
        is_right = np.arange(drafted) < right[:, None]
        draft = torch.from_numpy(np.where(is_right, truth, (truth + 1) % VOCABULARY)).long()
        shape = (drafted, batch, len(CONFIDENCES))
        evidence = torch.from_numpy(-rng.exponential(1.0, shape).astype(np.float32))
        began_s = perf_counter()
        if before is not None:
            neural = np.minimum(before.report.neural, before.verified)
            host.learn(VerifiedStep(before, holds, before.verified, neural, counts - 1, counts))
        step = host.decide(DraftedStep(slots, prompts, holds), int(known.sum()))
        rows = map(torch.from_numpy, (texts, known, prompts, holds, counts, counts))
        running = drafting.begin(
            Batch(torch.from_numpy(slots).long(), *rows),
            torch.from_numpy(step.settings),
        )
        begun_s = perf_counter()
        drafting.revise(running, draft, evidence)
        read_s = perf_counter()
        # The policy's plan is overruled, so that every step has a draft of the same length.
        step.forwards = drafted
        step.report = drafting.finish(running, draft, evidence, None).report
        host.take_likeliest(step)
        ended_s = perf_counter()
        yield (begun_s - began_s, read_s - begun_s, ended_s - read_s), counts
        before, counts = step, np.minimum(right, step.verified).astype(np.int32) + 1


def made_up_texts(count: int, tokens: int, output: int) -> Ints:
    """`count` different prompts of so many tokens, each with its output; the same at each call.

    Words follow Zipf's law, and about every 30th starts a copy of some 25 earlier tokens. Per
    token, this gives about the matches of recorded chats and code edits. Three in ten spans of an
    output have words never seen before: half of the rows find a match.
    """
    rng = np.random.default_rng([tokens, count])
    cumulative = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
    texts = np.empty((count, tokens + output), np.int32)
    for text in texts:
        text[:] = np.searchsorted(cumulative / cumulative[-1], rng.random(len(text)))
        position = int(rng.geometric(0.03))
        while position < len(text):
            span = min(int(rng.geometric(0.04)), position, len(text) - position)
            source = int(rng.integers(0, position - span + 1))
            text[position : position + span] = text[source : source + span]
            position += span + int(rng.geometric(0.03))
    spans = np.cumsum(rng.random((count, output)) < 1 / 8, axis=1, dtype=np.int64)
    is_new = np.take_along_axis(rng.random(spans.shape) < 0.3, spans, axis=1)
    texts[:, tokens:] = np.where(is_new, VOCABULARY + np.arange(output), texts[:, tokens:])
    return texts


def main() -> None:
    """Measure each policy at each number of requests, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", action="append", metavar="DIR|NAME", help="[each shipped one]")
    parser.add_argument("--steps", type=int, default=400, help="of each policy and batch [400]")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = []
    for name in options.policy or shipped_policies():
        policy = load_policy(name)
        rows = [measured(policy, batch, options.steps) for batch in BATCHES]
        found.append((rows, constants(rows)))
    if options.json:
        rows = [row for rows, _ in found for row in rows]
        costs = {rows[0]["policy"]: fitted for rows, fitted in found}
        print(json.dumps({"schema": 1, "rows": rows, "costs": costs}, indent=2))
        return
    for rows, fitted in found:
        print(f"{rows[0]['policy']}: {json.dumps(fitted)}")
        for row in rows:
            parts = ", ".join(
                f"{name} {row[f'{name}_us']:.0f}" for name in ("before", "read", "after")
            )
            print(f"  {row['batch']:>3} requests {row['median_us']:7.0f} us a step: {parts}")


if __name__ == "__main__":
    main()
