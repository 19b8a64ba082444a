"""A long run on model runner V1: its engines, the policies it serves by, what it breaks."""

import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np

CHECKOUT = Path(__file__).parents[2]
sys.path += [str(CHECKOUT / "tests" / each) for each in ("engine", "unit/policy")]

from live_engine import Engine  # noqa: E402
from long_faults import INJECTIONS, now_and_then  # noqa: E402
from long_run import main  # noqa: E402
from long_shapes import CACHED, CHUNKED, CRAMPED, SHORT, Shape  # noqa: E402

from policies import Failing, Wanderer  # noqa: E402

CAP = 24
LIMIT_S = 0.02
FAULTS = (
    "admit",
    "keep",
    "plan",
    "proceed",
    "settle",
    "learn",
    "look-up",
    "batch",
    "time",
    "expects",
    "switched off",
)
STAGES = FAULTS[:-1]
"""The stages by which faults are counted."""
NEEDS_HEAD = ("proceed", "incomplete")
NEVER = ()
"""What cannot come up on this runner."""
SHAPES = (
    Shape("EAGLE", "eagle", {}),
    Shape("EAGLE-3, chunked prefill, prefix caching", "eagle3", {**CHUNKED, **CACHED}),
    Shape("draft model, few blocks", "draft", CRAMPED),
    Shape("n-gram alone, chunked prefill", None, {**CHUNKED, **CACHED}),
    Shape("EAGLE, few blocks, chunked prefill", "eagle", {**CHUNKED, **CRAMPED}),
    Shape("EAGLE-3, 4 at a time", "eagle3", {"max_num_seqs": 4}),
    Shape("MTP, prefix caching", "mtp", {**CACHED, "target": "mtp"}),
    Shape("draft model, short, chunked prefill", "draft", {**SHORT, **CHUNKED, **CACHED}),
    Shape("EAGLE, short, few blocks", "eagle", {**SHORT, **CRAMPED, "num_gpu_blocks_override": 16}),
)


def start(models, shape, _folder):
    """An engine of that shape."""
    config = {"method": "adaspec", "num_speculative_tokens": CAP}
    config["policy"] = "hybrid-splice" if shape.head else "fixed:ngram:8:2"
    if shape.head:
        config["model"] = str(models / shape.head)
    return Engine(models, config, **shape.arguments)


def serve_by(engine, rng, has_head, fault, **changes):
    """What serves from here on, and the name of its policy."""
    policy = policy_for(fault) if fault else sound_policy(rng, has_head, CAP)
    session = engine.put(policy, stop_if_slow=fault == "time", **changes)
    return session, session.policy.name


def count_chunks(session, count):
    """Count rows whose prompt is not through yet after a step."""
    whole = session.begin

    def begin(rows, alive):
        count(sum(not came for came in rows.sampled))
        return whole(rows, alive)

    session.begin = begin


class Sleeping(Wanderer):
    """Takes longer than it may, now and then."""

    def decide(self, batch):
        """As a `Wanderer`, and sometimes late."""
        if self.draw.random() < 0.1:
            time.sleep(2 * LIMIT_S)
        return super().decide(batch)


class Boasting(Wanderer):
    """Fails to say what it expects."""

    def expects(self, proposal):
        """Fails."""
        raise RuntimeError("injected")


def policy_for(fault):
    """The policy that a fault of that name is injected by."""
    if fault == "switched off":
        return Failing("forwards", "raises")
    if fault == "settle":
        return Failing("decide", "nan lengths", 5)
    if fault == "plan":
        return Failing("forwards", "nan", 5)
    if fault == "keep":
        return Failing("holds_drafter", "raises", 5)
    if fault == "learn":
        return Failing("learn", "raises", 5)
    return {"time": Sleeping, "expects": Boasting, "incomplete": Stumbling}.get(fault, Wanderer)()


class Stumbling(Failing):
    """Fails while requests are being recorded: their rows have holes then."""

    def __init__(self):
        super().__init__("plan", "raises", 6)


def _look_up(stack, session, recorder):
    failing = now_and_then(session._new_step, MemoryError("injected"))
    stack.enter_context(mock.patch.object(session, "_new_step", failing))


def _batch(stack, session, recorder):
    from adaspec.vllm import attachment

    failing = now_and_then(attachment.batch_of, IndexError("injected"))
    stack.enter_context(mock.patch.object(attachment, "batch_of", failing))


def _time(stack, session, recorder):
    stack.enter_context(mock.patch("adaspec.vllm.session.SLOW_S", LIMIT_S))


PLACES = {"look-up": _look_up, "batch": _batch, "time": _time, **INJECTIONS}
"""What breaks something, by the name of the fault; the others are broken by the policy."""

STATIC = (
    "none",
    "fixed:ngram:8:2",
    "fixed:ngram-vllm:6:2:5",
    "fixed:neural:3",
    "hybrid:4:16:3",
    "hybrid-splice:4:20:3:2:5",
    "hybrid-agree:3:12:2:2:5",
    "ema",
    "budget:4",
)
NGRAM_STATIC = ("none", "fixed:ngram:8:2", "fixed:ngram-vllm:6:2:5", "hybrid:4:16:0")


def sound_policy(rng, has_head, cap):
    """A policy without a fault: one that takes every way, a learned one, or a rule."""
    way = rng.random()
    if way < 0.4:
        wanderer = Wanderer()
        wanderer.seed = int(rng.integers(1 << 30))
        return wanderer
    if way < 0.7:
        return _learned(rng, has_head, cap)
    return str(rng.choice(STATIC if has_head else NGRAM_STATIC))


def _learned(rng, has_head, cap):
    from random_models import random_policy

    from adaspec.predict.tables import packed

    nothing = np.empty(0, np.float32)
    tables = packed(np.empty(0, np.uint64), *[nothing] * 3, (0.5, 0.5, 1.0, 1.0), 1)
    return random_policy(rng, tables, evidence=has_head, cap=cap, neural_cap=8 if has_head else 0)


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
