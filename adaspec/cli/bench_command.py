"""`adaspec bench`: time adaspec beside other systems."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from adaspec.bench import decide as deciding
from adaspec.bench import lookup as looking_up
from adaspec.bench import memory as remembering
from adaspec.bench import served as serving
from adaspec.cli.bench_engine import engine_command
from adaspec.cli.group import NamingGroup
from adaspec.cli.options import json_option, numbers_option, whole_option
from adaspec.cli.output import (
    ProgressBar,
    add_columns,
    add_sections,
    print_json,
    printable,
    results,
)
from adaspec.cost.load import read_cost, save_cost
from adaspec.errors import CostError
from adaspec.files import check_writable


@click.group("bench", cls=NamingGroup)
def command() -> None:
    """How fast are we, side by side with others.

    \b
    Example:
      adaspec bench decide --policy policies/mine
      adaspec bench lookup --contexts 1k,32k --batches 1,128
      adaspec bench engine --model M --draft EAGLE_HEAD --prompts prompts.jsonl -o bench
    """


command.add_command(engine_command)


@command.command("decide")
@click.option(
    "--policy",
    "policies",
    metavar="DIR|NAME",
    multiple=True,
    help="A trained policy; may be repeated.  [default: each shipped one]",
)
@numbers_option(
    "--contexts",
    deciding.CONTEXTS,
    "Context lengths in tokens.",
    kilo=True,
    shown="1k,4k,32k",
)
@numbers_option(
    "--batches", deciding.BATCHES, "How many requests one step serves.", shown="1,8,32,128,256"
)
@whole_option(
    "--steps",
    deciding.STEPS,
    help="Steps per batch and context; 100000 shows whether time or memory grow.",
)
@click.option(
    "--server",
    "served",
    is_flag=True,
    help="Decide as a server does, between forwards of a model that empty the caches.",
)
@click.option(
    "--into",
    "cost_file",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Keep what deciding takes in this cost file, by which replays charge it.",
)
@json_option("Print JSON, and nothing else, to stdout.")
def decide(
    policies: tuple[str, ...],
    contexts: tuple[int, ...],
    batches: tuple[int, ...],
    steps: int,
    served: bool,
    cost_file: Path | None,
    as_json: bool,
) -> None:
    """Time a learned policy's whole step: index, features, prediction, planning, splicing.

    Several policies take turns in one run, on the same requests.

    Every step takes in what the last one emitted, looks up, plans, listens to a draft of three
    tokens with confidences, chooses again, splices, and learns. About half the requests have a
    match. Requests are made up, and leave after 512 tokens for others to enter.

    With --server, the plug-in's session decides, with all its bookkeeping; before each of its calls
    64 MB are read, and the other cores read memory all the time. That is several times slower than
    from warm caches, and what a server on a CPU pays; "metric" is what its own metric would say.

    
    Example:
      adaspec bench decide --policy policies/mine --batches 1,128
    """
    if cost_file is not None:
        check_writable(cost_file, CostError)
    with ProgressBar() as bar:
        benched = deciding.find_benched(policies)
        measure = serving.bench_served if served else deciding.bench_decide
        decided = measure(benched, contexts, batches, steps, bar)
    if cost_file is not None:
        cost, fit = read_cost(cost_file)
        save_cost(cost.with_deciding(deciding.deciding_constants(decided.rows)), cost_file, fit)
    if as_json:
        print_json(asdict(decided))
    else:
        _print_decided(decided)


def _print_decided(decided: deciding.Decided) -> None:
    console = results()
    for policy, rows in itertools.groupby(decided.rows, lambda row: row.policy):
        _print_policy(console, policy, list(rows))
    console.print(
        "medians, but for p99; look-up: taking in what came and looking up what follows; before,"
        " while and after drafting"
    )
    references = [row.reference_us for row in decided.rows if row.reference_us is not None]
    if references:
        console.print(f"reference loop: {references[0]:.1f} us in the same rounds")
    console.print(
        f"memory held: {decided.first_tenth_mb:.0f} MB in the first tenth of the rounds, "
        f"{decided.last_tenth_mb:.0f} in the last; peak {decided.peak_mb:.0f}"
    )


def _print_policy(console: Console, policy: str, rows: Sequence[deciding.DecideRow]) -> None:
    listens = (
        "which it listens to, and to their confidences"
        if rows[0].evidence
        else "which it does not listen to: it knows no evidence"
    )
    table = Table(
        title=f"one decision of policy {printable(policy)}, microseconds a step",
        caption=f"drafts of {rows[0].drafted} tokens, {listens}",
    )
    add_columns(table, "context", "batch", "median", "p99", "look-up", "before", "while", "after")
    add_columns(table, "first tenth", "last tenth")
    if rows[0].served:
        add_columns(table, "metric")

    def cells(row: deciding.DecideRow) -> list[str]:
        times_us = (row.median_us, row.p99_us, row.lookup_us, row.before_us, row.while_us)
        more_us = (row.after_us, row.first_tenth_us, row.last_tenth_us)
        served_us = (row.metric_us,) if row.served else ()
        figures = [f"{time_us:.1f}" for time_us in (*times_us, *more_us, *served_us)]
        return [f"{row.context_tokens:,}", str(row.batch), *figures]

    add_sections(table, (cells(row) for row in rows if row.skipped is None))
    console.print(table)
    for row in rows:
        if row.skipped is not None:
            console.print(
                f"skipped context {row.context_tokens:,}, batch {row.batch}: {row.skipped}",
                soft_wrap=True,
            )


@command.command("lookup")
@numbers_option(
    "--contexts",
    looking_up.CONTEXTS,
    "Context lengths in tokens.",
    kilo=True,
    shown="1k,4k,8k,32k,128k",
)
@numbers_option(
    "--batches", looking_up.BATCHES, "How many requests one step serves.", shown="1,8,32,128"
)
@whole_option("--rounds", looking_up.ROUNDS, help="Turns of ten steps.")
@json_option("Print JSON, and nothing else, to stdout.")
def lookup(contexts: tuple[int, ...], batches: tuple[int, ...], rounds: int, as_json: bool) -> None:
    """Time the n-gram look-up: append one token to every request and look up what follows.

    Ours beside vLLM's NgramProposer and arctic-inference's suffix cache where those are
    installed, on the same made-up contexts, in one run with interleaved rounds.

    \b
    Example:
      adaspec bench lookup --contexts 1k,32k --batches 1,128 --rounds 10
    """
    with ProgressBar() as bar:
        rows = looking_up.bench_lookup(contexts, batches, rounds, bar)
    if as_json:
        print_json({"rows": [asdict(row) for row in rows]})
    else:
        _print_rows(rows)


@command.command("memory")
@numbers_option(
    "--tokens", remembering.TOKENS, "Tokens stored.", kilo=True, shown="10k,100k,1000k,10000k"
)
@json_option("Print JSON, and nothing else, to stdout.")
def memory(tokens: tuple[int, ...], as_json: bool) -> None:
    """Time look-ups in the answers of earlier requests, for one request at a time.

    Ours beside arctic-inference's suffix cache where that is installed, on the same made-up
    answers, in one run with interleaved turns. Drafts are of at most 8 tokens.

    
    Example:
      adaspec bench memory --tokens 10k,1000k
    """
    with ProgressBar() as bar:
        rows = remembering.bench_memory(tokens, bar)
    if as_json:
        print_json({"rows": [asdict(row) for row in rows]})
        return
    table = Table(title="look-up in earlier answers, one request")
    add_columns(table, "stored tokens")
    table.add_column("system")
    add_columns(table, "median us", "p99 us", "store us/token", "bytes/token", "accepted")

    def cells(row: remembering.MemoryRow) -> list[str]:
        times = [f"{time:.2f}" for time in (row.median_us, row.p99_us, row.add_us_per_token)]
        size = "-" if row.bytes_per_token is None else f"{row.bytes_per_token:.0f}"
        return [
            f"{row.stored_tokens:,}",
            row.system,
            *times,
            size,
            f"{row.accepted_per_lookup:.2f}",
        ]

    add_sections(table, (cells(row) for row in rows if row.median_us is not None))
    results().print(table)
    for row in rows:
        if row.skipped is not None:
            results().print(f"skipped {row.system}: {row.skipped}", soft_wrap=True)


def _print_rows(rows: Sequence[looking_up.LookupRow]) -> None:
    table = Table(title="n-gram look-up, one token appended per request and step")
    add_columns(table, "context", "batch")
    table.add_column("system")
    add_columns(table, "median us", "p99 us", "cold us", "prompt ms", "bytes/token")

    def cells(row: looking_up.LookupRow) -> list[str]:
        times = (row.median_us, row.p99_us, row.cold_us, row.index_prompt_ms)
        size = "-" if row.bytes_per_token is None else f"{row.bytes_per_token:.1f}"
        figures = [f"{time:.2f}" for time in times]
        return [f"{row.context_tokens:,}", str(row.batch), row.system, *figures, size]

    add_sections(table, (cells(row) for row in rows if row.median_us is not None))
    console = results()
    console.print(table)
    console.print(
        "us per request and step; cold: the first step after the other systems ran;"
        " prompt: processor time of taking in one prompt of the context's length"
    )
    references = [row.reference_us for row in rows if row.reference_us is not None]
    if references:
        console.print(
            f"reference loop: {min(references):.1f} to {max(references):.1f} us"
            " (a wider spread means a noisier machine)"
        )
    skipped = {(row.system, row.skipped) for row in rows if row.skipped is not None}
    for system, reason in sorted(skipped):
        console.print(f"skipped {system}: {reason}", soft_wrap=True)
