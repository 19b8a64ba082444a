"""What speculation could gain and what memory it takes, by formulas alone.

python eval/paper/formulas.py speedup --alpha 0.6,0.8 --c 0.05,0.1 --k 1,3,5
python eval/paper/formulas.py memory
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

VALUE_BYTES = 2
"""Of a weight, and of a number in the KV cache, in bfloat16."""
EAGLE3_VOCABULARY = 32_000
"""The tokens that the published EAGLE-3 heads can draft."""
EAGLE3_STATES = 3
"""The layers of the target whose states an EAGLE-3 head reads."""


def expected_speedup(alpha: float, c: float, k: int) -> float:
    """(1 - alpha^(k+1)) / ((1 - alpha) (ck + 1)): tokens per target forward over their time.

    Each of `k` drafted tokens is accepted with probability `alpha` if those before it were, a
    forward of the drafter takes `c` times a forward of the target, and verifying takes one forward
    of the target however long the draft is.
    """
    # Summed term by term, because the closed form divides by zero at alpha = 1.
    return sum(alpha**accepted for accepted in range(k + 1)) / (c * k + 1)


@dataclass(frozen=True, slots=True)
class Shapes:
    """What a model's memory follows from; biases and norms of queries and keys are left out."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    ties_embedding: bool = False

    @property
    def layer_values(self) -> int:
        """The weights of one layer: attention, gated MLP and two norms."""
        attention = 2 * (self.heads + self.kv_heads) * self.head_dim
        return self.hidden * (attention + 3 * self.intermediate + 2)

    @property
    def weights(self) -> int:
        """Bytes of layers, embedding, LM head and a norm."""
        outside = (1 if self.ties_embedding else 2) * self.vocabulary + 1
        return VALUE_BYTES * (self.layers * self.layer_values + outside * self.hidden)

    @property
    def kv(self) -> int:
        """Bytes of keys and values of one token in all layers."""
        return VALUE_BYTES * 2 * self.layers * self.kv_heads * self.head_dim


MODELS = {
    "llama-3.1-8b": Shapes(32, 4096, 14336, 32, 8, 128, 128_256),
    "llama-3-70b": Shapes(80, 8192, 28672, 64, 8, 128, 128_256),
    "qwen3-8b": Shapes(36, 4096, 12288, 32, 8, 128, 151_936),
}
DRAFTS = {"qwen3-8b": Shapes(28, 1024, 3072, 16, 8, 128, 151_936, ties_embedding=True)}
"""Target -> the draft model that is common for it; Qwen3-0.6B here."""


class Taken(NamedTuple):
    """What a target takes together with a drafter, in bytes."""

    drafter: str
    weights: int
    kv_per_token: int


def memory(model: str) -> list[Taken]:
    """A target alone, which is also what n-gram drafting takes, and with each drafter.

    The heads have one layer as wide as the target's. An EAGLE head is a matrix that joins a token
    with the target's last state, and the layer without its input norm; the LM head is the target's.
    An EAGLE-3 head joins three states of the target, has an LM head and a final norm of its own,
    and its layer attends to token and state side by side, with a norm for each.
    """
    target = MODELS[model]
    head = replace(target, layers=1)
    joined = EAGLE3_STATES * head.hidden + (head.heads + 2 * head.kv_heads) * head.head_dim
    eagle = head.layer_values + (2 * head.hidden - 1) * head.hidden
    eagle3 = head.layer_values + (joined + EAGLE3_VOCABULARY + 2) * head.hidden
    drafters = [("eagle", VALUE_BYTES * eagle, head.kv), ("eagle3", VALUE_BYTES * eagle3, head.kv)]
    if model in DRAFTS:
        drafters.append(("draft model", DRAFTS[model].weights, DRAFTS[model].kv))
    return [
        Taken("none, n-gram", target.weights, target.kv),
        *(Taken(name, target.weights + more, target.kv + kv) for name, more, kv in drafters),
    ]


def speedup_table(alphas: Sequence[float], cs: Sequence[float], ks: Sequence[int]) -> list[str]:
    """A line per c and alpha, with the best k, which is 0 where no draft pays."""
    lines = ["\t".join(["c", "alpha", *(f"k = {k}" for k in ks), "best k"])]
    for c in cs:
        for alpha in alphas:
            speedups = {k: expected_speedup(alpha, c, k) for k in (0, *ks)}
            best = max(speedups, key=lambda k: (speedups[k], -k))
            shown = (f"{speedups[k]:.2f}" for k in ks)
            lines.append("\t".join([f"{c:g}", f"{alpha:g}", *shown, str(best)]))
    return lines


def memory_table() -> list[str]:
    """A line per model and drafter."""
    lines = ["model\tdrafter\tweights GiB\tmore\tKV KiB per token\tmore"]
    for model in MODELS:
        alone, *_ = rows = memory(model)
        for row in rows:
            weights, kv = row.weights / alone.weights - 1, row.kv_per_token / alone.kv_per_token - 1
            sizes = (
                f"{row.weights / 2**30:.2f}\t{weights:.1%}\t{row.kv_per_token / 2**10:g}\t{kv:.1%}"
            )
            lines.append(f"{model}\t{row.drafter}\t{sizes}")
    return lines


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=["speedup", "memory"])
    parser.add_argument("--alpha", default="0.5,0.6,0.7,0.8,0.9", help="chances of acceptance")
    parser.add_argument("--c", default="0.02,0.1,0.4", help="a drafter's forward over a target's")
    parser.add_argument("--k", default="1,2,3,4,5,6,7,8", help="tokens per draft")
    arguments = parser.parse_args()
    if arguments.table == "memory":
        lines = memory_table()
    else:
        alphas, cs = (list(map(float, each.split(","))) for each in (arguments.alpha, arguments.c))
        lines = speedup_table(alphas, cs, list(map(int, arguments.k.split(","))))
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
