"""Which prompts are sent when: the same for every method, and as few as can be twice."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from adaspec.bench.engine.traffic import Call
from adaspec.evaluate.closed_loop import ALL

SLOTS_FILLED = 4
"""Requests of a round, at least, for every one that runs at once.

In a round of two, answers of no speculation end together, and both waves count whole; those of
other methods end one by one, and the second wave is cut off behind its prefill. By replay that is
worth up to 10% to no speculation; from four on it makes little difference. One request at a time
knows no waves: there a round may be a single request, so that methods take turns within seconds.
"""


def deal(
    prompts: Mapping[str, Sequence[Call]],
    cells: Sequence[str],
    rounds: int,
    requests: int,
    concurrency: int,
    seed: int,
) -> tuple[dict[tuple[int, str], list[Call]], bool]:
    """The calls of every (round, cell), and whether any prompt had to come twice.

    A method that remembers earlier answers would find a prompt's own where it came before, so
    prompts are dealt like cards, and the pack is shuffled again only when it is through.
    """
    draw = random.Random(f"{seed}/{concurrency}")
    packs: dict[str, list[Call]] = {name: [] for name in prompts}
    turns = dict.fromkeys(prompts, 0)

    def take(workload: str) -> Call:
        if not packs[workload]:
            packs[workload] = draw.sample(list(prompts[workload]), len(prompts[workload]))
            turns[workload] += 1
        return packs[workload].pop()

    dealt = {}
    count = max(requests, SLOTS_FILLED * concurrency if concurrency > 1 else 1)
    names = sorted(prompts)
    for turn in range(rounds):
        for cell in cells:
            if cell == ALL:
                # On from where the last round ended: short rounds come to every workload, too.
                ats = range(turn * count, (turn + 1) * count)
                calls = [take(names[at % len(names)]) for at in ats]
                draw.shuffle(calls)
            else:
                calls = [take(cell) for _ in range(count)]
            dealt[turn, cell] = calls
    return dealt, any(turn > 1 for turn in turns.values())
