"""A long run on model runner V2, in Triton's interpreter: its engines, policies and faults."""

import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
sys.path += [str(CHECKOUT / "tests" / each) for each in ("engine", "engine/v2", "unit/policy")]

import interpreter  # noqa: E402
from live_engine import Engine  # noqa: E402
from long_faults import INJECTIONS, broken  # noqa: E402
from long_run import main  # noqa: E402
from long_served import count_chunks, serve_by  # noqa: E402
from long_shapes import CACHED, CRAMPED, SHORT, Shape  # noqa: E402
from wandering import CAP, written_policy  # noqa: E402

from adaspec.cost.load import DEFAULT  # noqa: E402

CHUNKED = {"max_num_batched_tokens": 96, "block_size": 32}
__all__ = ["count_chunks", "serve_by"]
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
    "holds_drafter": "decider",
    "decide": "decider",
    "note": "decider",
    "learn": "decider",
    "budget": "decider",
    "begin": "drafting",
    "revise": "drafting",
    "finish": "drafting",
}
"""What is broken now and then, and the part of the session that has it."""
FAULTS = (*PARTS, "switched off")
STAGES = ("plan", "settle")
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


PLACES = {
    **{name: broken(part, name, 7) for name, part in PARTS.items()},
    "switched off": broken("drafting", "finish", 1),
    "incomplete": broken("decider", "note", 7),
    **INJECTIONS,
}
"""What breaks something, by the name of the fault."""

if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
