"""What every row of a report means, in a sentence each."""

from __future__ import annotations

from adaspec.evaluate.render.results import ORACLES, Results

_HINDSIGHT = "the best in hindsight on these very requests at each concurrency, of "
MEANINGS = {
    "none": "no speculation",
    "fixed:best": _HINDSIGHT + "one drafter at one length (`fixed:ngram`, `fixed:neural`)",
    "hybrid:best": _HINDSIGHT + "the `hybrid` grid: n-gram or neural by match length, no splicing",
    "adaptive:best": _HINDSIGHT + "what adapts by itself: `budget`, `batch-table`, `ema`",
    "static:one": "the one static setting that is best over all concurrencies (geometric mean)",
    "static:tuned": "what the grids chose at each concurrency on the policy's training requests",
    "static:best": _HINDSIGHT + "every static setting of every grid, and `none`",
    "oracle:ngram": "n-gram alone: each request proposes its whole accepted span; greedy",
    "oracle:neural": "neural alone: each request proposes its whole accepted span; greedy",
    "oracle:combine": "the longer accepted span of the two, n-gram on ties; greedy",
    "oracle:plan": "perfect foresight, each step's plans chosen by the going rate; a reference",
    "oracle:plan-splice": "the same, with n-gram tokens spliced behind neural ones; a reference",
    "oracle:dp": "the cheapest possible path, by dynamic programming; a bound, for one request",
    "oracle:dp-splice": "the same, with splices; a bound, for one request",
}
GREEDY = (
    "The `ngram`, `neural` and `combine` oracles are greedy: each request proposes its whole "
    "accepted span and the batch pays for the longest, so in mixed batches a short fixed draft "
    "can beat them. `plan` and `plan-splice` are references. Only `dp` and `dp-splice` are "
    "bounds, for one request."
)


def defined(results: Results) -> tuple[list[tuple[str, str]], str]:
    """(row, meaning) for each that the report shows, and a word on its oracles, if any."""
    shown = results.shown(MEANINGS)
    return [(name, MEANINGS[name]) for name in shown], (
        GREEDY if any(name in ORACLES for name in shown) else ""
    )
