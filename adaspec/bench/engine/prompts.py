"""The prompts of a benchmark: read, those of the training left out, and dealt to rounds."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from adaspec.bench.engine.client import Call
from adaspec.bench.engine.methods import BenchmarkOptions
from adaspec.errors import BenchError
from adaspec.evaluate.evaluation import seen_in_training
from adaspec.evaluate.options import ALL
from adaspec.evaluate.selection import content_hash
from adaspec.replay.contender import parse_contender
from adaspec.trace.reader import open_traces
from adaspec.vllm.prompts import Prompt, read_prompts

CALLS_PER_SLOT = 4
"""Requests of a round, at least, for every one that runs at once.

In a round of two, answers of no speculation end together, and both waves count fully; those of
other methods end one by one, and the second wave is cut off behind its prefill. By replay that is
worth up to 10% to no speculation; from four on it makes little difference. One request at a time
knows no waves: there a round may be a single request, so that methods take turns within seconds.
"""

Dealt = dict[tuple[int, str], list[Call]]
"""The calls of each (round, cell)."""


def read(options: BenchmarkOptions) -> list[Prompt]:
    """Every prompt of the files, each under a name of its own."""
    prompts = [prompt for file in options.prompts for prompt in read_prompts(file)]
    seen: dict[tuple[str, str], str] = {}
    for prompt in prompts:
        if prompt.key in seen:
            raise BenchError(
                f"{prompt.where}: id {prompt.id!r} of workload {prompt.workload!r} stands already "
                f"in {seen[prompt.key]}: rename or remove one"
            )
        seen[prompt.key] = prompt.where
    return prompts


def tokenized(options: BenchmarkOptions, prompts: Sequence[Prompt]) -> dict[str, list[Call]]:
    """Every prompt as token ids, by workload."""
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(options.model)
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise BenchError(f"the tokenizer of '{options.model}' cannot be read: {line}") from error
    calls: dict[str, list[Call]] = {}
    for prompt in prompts:
        tokens = tuple(int(token) for token in prompt.tokens(tokenizer))
        max_tokens = min(prompt.max_tokens or options.max_tokens, options.max_tokens)
        calls.setdefault(prompt.workload, []).append(Call(*prompt.key, tokens, max_tokens))
    return calls


def trained_on(policies: Sequence[str]) -> frozenset[str]:
    """Content hashes of all requests that these policies were trained on."""
    # A user's own class is imported by the server alone, and says nothing of its training.
    named = [parse_contender(each) for each in policies if not each.startswith("python:")]
    return seen_in_training(named)


def leave_out_trained(
    calls: Mapping[str, Sequence[Call]], traces: Sequence[Path], trained: frozenset[str]
) -> tuple[dict[str, list[Call]], int]:
    """The calls whose prompts no policy was trained on, as far as the traces tell.

    The second value is how many were left out: they would flatter the policies. A `BenchError`
    where a workload has no other prompt.
    """
    seen = {
        tuple(request.prompt_tokens.tolist())
        for reader in (open_traces(traces) if trained and traces else ())
        for request in reader.requests()
        if content_hash(request) in trained
    }
    kept = {
        name: [call for call in each if call.prompt not in seen] for name, each in calls.items()
    }
    for name, each in kept.items():
        if not each:
            raise BenchError(
                f"workload '{name}': a policy was trained on all of its {len(calls[name])} "
                "prompts: give prompts that it never saw"
            )
    return kept, sum(map(len, calls.values())) - sum(map(len, kept.values()))


def deal(
    prompts: Mapping[str, Sequence[Call]],
    cells: Sequence[str],
    rounds: int,
    requests: int,
    concurrency: int,
    seed: int,
) -> tuple[Dealt, bool]:
    """The calls of every (round, cell), and whether any prompt had to come twice.

    They are the same for every method. A method that remembers earlier answers would gain where
    a prompt is repeated, so a workload's prompts are shuffled anew only when all have come.
    """
    draw = random.Random(f"{seed}/{concurrency}")
    left: dict[str, list[Call]] = {name: [] for name in prompts}
    shuffles = dict.fromkeys(prompts, 0)

    def take(workload: str) -> Call:
        if not left[workload]:
            left[workload] = draw.sample(list(prompts[workload]), len(prompts[workload]))
            shuffles[workload] += 1
        return left[workload].pop()

    dealt = {}
    count = max(requests, CALLS_PER_SLOT * concurrency if concurrency > 1 else 1)
    names = sorted(prompts)
    for turn in range(rounds):
        for cell in cells:
            if cell == ALL:
                # On from where the last round ended: short rounds come to every workload, too.
                numbers = range(turn * count, (turn + 1) * count)
                calls = [take(names[number % len(names)]) for number in numbers]
                draw.shuffle(calls)
            else:
                calls = [take(cell) for _ in range(count)]
            dealt[turn, cell] = calls
    return dealt, any(times > 1 for times in shuffles.values())
