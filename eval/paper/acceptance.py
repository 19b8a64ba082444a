"""How outputs repeat their prompts, and what is accepted along short and long outputs.

python eval/paper/acceptance.py eval/traces/reference-pair

The first table has BLEU's n-gram precision of outputs against their prompts, and its rank
correlation with the mean count that n-gram drafts get accepted. The second has the mean accepted
count in each tenth of the output, for the shortest, middle and longest third of a workload's
outputs. A count of an unknown position is left out, and so is position 0, where nothing is decided.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from adaspec.errors import AdaspecError
from adaspec.evaluate.inspection import ngram_accepted
from adaspec.trace.reader import read_trace
from adaspec.trace.schema import Request

LONGEST = 4
"""The longest n-grams that are compared, as in BLEU."""
LEAST_REQUESTS = 3
"""The rank correlation of fewer requests is 1 or -1, whatever they are."""
CLASSES = ("short", "middle", "long")
PARTS = 10


def overlaps(prompt: NDArray[np.int32], output: NDArray[np.int32]) -> list[float]:
    """BLEU's precision for n = 1 to `LONGEST`; NaN where the output has fewer than n tokens.

    An n-gram of the output counts as often as it stands in the prompt, at most. BLEU's penalty for
    short outputs is left out.
    """
    found = []
    for n in range(1, LONGEST + 1):
        there, wanted = (
            Counter(zip(*(tokens.tolist()[first:] for first in range(n)), strict=False))
            for tokens in (prompt, output)
        )
        found.append((wanted & there).total() / wanted.total() if wanted else math.nan)
    return found


def rank_correlation(overlap: NDArray[np.float64], accepted: NDArray[np.float64]) -> float:
    """Spearman's, NaN where too few requests, or only equal ones, leave it open."""
    known = ~np.isnan(overlap)
    overlap, accepted = overlap[known], accepted[known]
    if len(overlap) < LEAST_REQUESTS or not np.ptp(overlap) or not np.ptp(accepted):
        return math.nan
    return float(spearmanr(overlap, accepted).statistic)


def along(counts: Sequence[NDArray[Any]]) -> Iterator[tuple[str, int, int, NDArray[np.float64]]]:
    """(class, least and greatest length, mean in each tenth) of counts by position.

    Outputs of equal length are in one class, such as all that reached a limit of tokens in `long`.
    """
    lengths = np.array([len(each) for each in counts])
    number = np.searchsorted(np.quantile(lengths, [1 / 3, 2 / 3]), lengths, side="right")
    for index in np.unique(number):
        accepted, positions = np.zeros(PARTS), np.zeros(PARTS)
        for at in np.flatnonzero(number == index):
            decided = counts[at][1:]
            part = np.arange(len(decided)) * PARTS // max(len(decided), 1)
            accepted += np.bincount(part, np.maximum(decided, 0), PARTS)
            positions += np.bincount(part[decided >= 0], minlength=PARTS)
        its = lengths[number == index]
        mean = np.divide(accepted, positions, out=np.full(PARTS, np.nan), where=positions > 0)
        yield CLASSES[index], int(its.min()), int(its.max()), mean


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path, help="a trace")
    arguments = parser.parse_args()
    workloads: dict[str, list[Request]] = {}
    try:
        for request in read_trace(arguments.trace).requests():
            if len(request.output_tokens) > 1:
                workloads.setdefault(request.workload, []).append(request)
    except (AdaspecError, OSError) as error:
        print(f"acceptance: {error}", file=sys.stderr)
        return 2
    names = [f"BLEU-{n}" for n in range(1, LONGEST + 1)]
    ngram = {
        name: [ngram_accepted(request) for request in requests]
        for name, requests in workloads.items()
    }
    print("\t".join(["workload", *names, "n-gram accepted", f"rank correlation with {names[-1]}"]))
    for name, requests in workloads.items():
        table = np.array([overlaps(each.prompt_tokens, each.output_tokens) for each in requests])
        accepted = np.array([each[1:].mean() for each in ngram[name]])
        mean = np.concatenate([each[1:] for each in ngram[name]]).mean()
        figures = [*np.nanmean(table, axis=0), mean, rank_correlation(table[:, -1], accepted)]
        print("\t".join([name, *(f"{figure:.2f}" for figure in figures)]))
    print("\n" + "\t".join(["workload", "source", "outputs", "tokens", *map(str, range(1, 11))]))
    for name, requests in workloads.items():
        neural = [each.neural_accepted for each in requests if each.paired]
        for source, counts in (("ngram", ngram[name]), ("neural", neural)):
            for kind, least, most, means in along(counts) if counts else ():
                shown = "\t".join(f"{mean:.1f}" for mean in means)
                print(f"{name}\t{source}\t{kind}\t{least}-{most}\t{shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
