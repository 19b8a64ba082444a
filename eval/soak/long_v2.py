"""A long run on model runner V2, in Triton's interpreter: its engines, policies and faults."""

import sys
import time
from pathlib import Path
from unittest import mock

CHECKOUT = Path(__file__).parents[2]
sys.path += [str(CHECKOUT / "tests" / each) for each in ("engine", "engine/v2", "unit/policy")]

import interpreter  # noqa: E402
import numpy as np  # noqa: E402
from live_engine import Engine  # noqa: E402
from long_faults import INJECTIONS, now_and_then  # noqa: E402
from long_run import main  # noqa: E402
from long_shapes import CACHED, CRAMPED, SHORT, Shape  # noqa: E402
from wandering import CAP, Wanderer, random_policy, written_policy  # noqa: E402

from adaspec.cost.builtin import DEFAULT  # noqa: E402

LIMIT_S = 0.5
CHUNKED = {"max_num_batched_tokens": 96, "block_size": 32}
SHAPES = (
    Shape("EAGLE", "eagle", {}),
    Shape("EAGLE-3, chunked prefill, prefix caching", "eagle3", {**CHUNKED, **CACHED}),
    Shape("draft model, few blocks", "draft", CRAMPED),
    Shape("n-gram alone, chunked prefill", None, {**CHUNKED, **CACHED}),
    Shape("EAGLE, few blocks, chunked prefill", "eagle", {**CHUNKED, **CRAMPED}),
    Shape("EAGLE-3, drafts of one length", "eagle3", CACHED, trims=False),
    Shape("MTP, prefix caching", "mtp", {**CACHED, "target": "mtp"}),
    Shape("draft model, short, chunked prefill", "draft", {**SHORT, **CHUNKED, **CACHED}),
    Shape("EAGLE, short, few blocks", "eagle", {**SHORT, **CRAMPED, "num_gpu_blocks_override": 16}),
)
PARTS = {
    "enter": "host",
    "decide": "host",
    "note": "host",
    "learn": "host",
    "budget": "host",
    "begin": "drafting",
    "revise": "drafting",
    "finish": "drafting",
}
"""What is broken now and then, and the part of the worker that has it."""
FAULTS = (*PARTS, "time", "switched off")
STAGES = ("plan", "settle", "time")
NEEDS_HEAD = ("revise", "incomplete")
NEVER = ("trace rows not written: incomplete",)
"""What cannot come up: a request that lost a step is written down no further, with no row that has
holes."""


def start(models, shape, folder):
    """An engine of that shape."""
    interpreter.Trimming.possible = shape.trims
    policy = folder / "policy"
    if not policy.exists():
        written_policy(policy)
    config = {"method": "adaspec", "policy": str(policy), "num_speculative_tokens": CAP}
    config["cost"] = DEFAULT
    if shape.head:
        config["model"] = str(models / shape.head)
    return Engine(models, config, **{"async_scheduling": True, **shape.arguments})


def serve_by(engine, rng, has_head, fault, **changes):
    """What serves from here on, and the name of its policy."""
    from adaspec.vllm.v2 import attachment

    seed = int(rng.integers(1 << 30))
    if fault is None and rng.random() < 0.5:
        policy = random_policy(seed, has_head, memory=bool(rng.random() < 0.5))
        return attachment.serve_by(engine.runner, policy, **changes), policy.name
    remembers = bool(rng.random() < 0.5)
    return Wanderer(engine, seed, has_head, remembers, **changes).worker, "wanderer"


def count_chunks(worker, count):
    """Count rows whose prompt is not through yet after a step."""
    whole = worker.begin

    def begin(rows, make_batch):
        count(int((~rows.samples).sum()))
        return whole(rows, make_batch)

    worker.begin = begin


def _broken(part, name, every):
    def put(stack, worker, recorder):
        owner = getattr(worker, part)
        failing = now_and_then(getattr(owner, name), RuntimeError("injected"), every)
        stack.enter_context(mock.patch.object(owner, name, failing))

    return put


def _slow(stack, worker, recorder):
    decide, draw = worker.host.decide, np.random.default_rng(0)

    def sleeping(*facts):
        if draw.random() < 0.02:
            time.sleep(1.5 * LIMIT_S)
        return decide(*facts)

    stack.enter_context(mock.patch("adaspec.vllm.session.session.SLOW_S", LIMIT_S))
    stack.enter_context(mock.patch.object(worker.host, "decide", sleeping))


PLACES = {
    **{name: _broken(part, name, 7) for name, part in PARTS.items()},
    "time": _slow,
    "switched off": _broken("drafting", "finish", 1),
    "incomplete": _broken("host", "note", 7),
    **INJECTIONS,
}
"""What breaks something, by the name of the fault."""

if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
