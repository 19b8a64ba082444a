"""A long run on model runner V1: its engines, and what it breaks."""

import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
sys.path += [str(CHECKOUT / "tests" / each) for each in ("engine", "unit/policy")]

from live_engine import Engine  # noqa: E402
from long_faults import INJECTIONS, broken, now_and_then  # noqa: E402
from long_run import main  # noqa: E402
from long_served import count_chunks, serve_by  # noqa: E402
from long_shapes import CACHED, CHUNKED, CRAMPED, SHORT, Shape  # noqa: E402

CAP = 24
PARTS = {
    "holds_drafter": "decider",
    "decide": "decider",
    "take_likeliest": "decider",
    "learn": "decider",
    "begin": "drafting",
    "revise": "drafting",
    "finish": "drafting",
}
"""What is broken now and then, and the part of the session that has it."""
FAULTS = (*PARTS, "batch", "switched off")
STAGES = ("plan", "settle", "batch")
"""The stages by which faults are counted."""
NEEDS_HEAD = ("revise", "incomplete")
NEVER = ("trace rows not written: incomplete",)
"""What cannot come up: a request that lost a step is written down no further, with no row that has
holes."""
__all__ = ["count_chunks", "serve_by"]
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


def _batch(stack, session, recorder):
    from unittest import mock

    from adaspec.vllm.v1 import Texts

    failing = now_and_then(Texts.write, IndexError("injected"))
    stack.enter_context(mock.patch.object(Texts, "write", failing))


PLACES = {
    **{name: broken(part, name, 7) for name, part in PARTS.items()},
    "batch": _batch,
    "switched off": broken("drafting", "finish", 1),
    "incomplete": broken("decider", "take_likeliest", 7),
    **INJECTIONS,
}
"""What breaks something, by the name of the fault."""

if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
