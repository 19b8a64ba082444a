"""`adaspec bench`: how fast are we, side by side."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table

from adaspec.bench import decide as deciding
from adaspec.bench.lookup import BATCHES, CONTEXTS, ROUNDS, LookupRow, bench_lookup
from adaspec.cli.bench_engine import engine_command
from adaspec.cli.group import NamingGroup
from adaspec.cli.numbers import WholeNumbers
from adaspec.cli.output import ProgressBar, print_json, printable, results


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
@click.option(
    "--contexts",
    type=WholeNumbers(kilo=True),
    default=deciding.CONTEXTS,
    show_default="1k,4k,32k",
    help="Context lengths in tokens.",
)
@click.option(
    "--batches",
    type=WholeNumbers(),
    default=deciding.BATCHES,
    show_default="1,8,32,128,256",
    help="How many requests one step serves.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=deciding.STEPS,
    show_default=True,
    help="Steps per batch and context; 100000 shows whether time or memory grow.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, to stdout.")
def decide(
    policies: tuple[str, ...],
    contexts: tuple[int, ...],
    batches: tuple[int, ...],
    steps: int,
    as_json: bool,
) -> None:
    """Time a learned policy's whole step: index, features, prediction, planning, splicing.

    Several policies take turns in one run, on the same requests.

    Every step takes in what the last one emitted, looks up, plans, listens to a draft of three
    tokens with confidences, chooses again, splices, and learns. About half the requests have a
    match. Requests are made up, and leave after 512 tokens for others to enter.

    
    Example:
      adaspec bench decide --policy policies/mine --batches 1,128
    """
    with ProgressBar() as bar:
        found = deciding.bench_decide(
            deciding.find_benched(policies), contexts, batches, steps, bar
        )
    if as_json:
        print_json(found.to_json())
    else:
        _print_decided(found)


def _print_decided(found: deciding.Decided) -> None:
    console = results()
    for policy, rows in itertools.groupby(found.rows, lambda row: row.policy):
        _print_policy(console, policy, list(rows))
    console.print(
        "medians, but for p99; look-up: taking in what came and looking up what follows; before,"
        " while and after drafting"
    )
    references = [row.reference_us for row in found.rows if row.reference_us is not None]
    if references:
        console.print(f"reference loop: {references[0]:.1f} us in the same rounds")
    console.print(
        f"memory held: {found.first_tenth_mb:.0f} MB in the first tenth of the rounds, "
        f"{found.last_tenth_mb:.0f} in the last; peak {found.peak_mb:.0f}"
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
    for heading in ("context", "batch", "median", "p99", "look-up", "before", "while", "after"):
        table.add_column(heading, justify="right")
    for heading in ("first tenth", "last tenth"):
        table.add_column(heading, justify="right")
    before = None
    for row in rows:
        if row.skipped is not None:
            continue
        if before is not None and before != row.context_tokens:
            table.add_section()
        before = row.context_tokens
        times = (row.median_us, row.p99_us, row.lookup_us, row.before_us, row.while_us)
        more = (row.after_us, row.first_tenth_us, row.last_tenth_us)
        table.add_row(
            f"{row.context_tokens:,}", str(row.batch), *(f"{each:.1f}" for each in (*times, *more))
        )
    console.print(table)
    for row in rows:
        if row.skipped is not None:
            console.print(
                f"skipped context {row.context_tokens:,}, batch {row.batch}: {row.skipped}",
                soft_wrap=True,
            )


@command.command("lookup")
@click.option(
    "--contexts",
    type=WholeNumbers(kilo=True),
    default=CONTEXTS,
    show_default="1k,4k,8k,32k,128k",
    help="Context lengths in tokens.",
)
@click.option(
    "--batches",
    type=WholeNumbers(),
    default=BATCHES,
    show_default="1,8,32,128",
    help="How many requests one step serves.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=ROUNDS,
    show_default=True,
    help="Turns of ten steps.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, to stdout.")
def lookup(contexts: tuple[int, ...], batches: tuple[int, ...], rounds: int, as_json: bool) -> None:
    """Time the n-gram look-up: append one token to every request and look up what follows.

    Ours beside vLLM's NgramProposer and arctic-inference's suffix cache where those are
    installed, on the same made-up contexts, in one run with interleaved rounds.

    \b
    Example:
      adaspec bench lookup --contexts 1k,32k --batches 1,128 --rounds 10
    """
    with ProgressBar() as bar:
        rows = bench_lookup(contexts, batches, rounds, bar)
    if as_json:
        print_json({"rows": [row.to_json() for row in rows]})
    else:
        _print_rows(rows)


def _print_rows(rows: Sequence[LookupRow]) -> None:
    table = Table(title="n-gram look-up, one token appended per request and step")
    for heading in ("context", "batch"):
        table.add_column(heading, justify="right")
    table.add_column("system")
    for heading in ("median us", "p99 us", "cold us", "prompt ms", "bytes/token"):
        table.add_column(heading, justify="right")
    before = None
    for row in rows:
        if row.median_us is None:
            continue
        if before is not None and before != row.context_tokens:
            table.add_section()
        before = row.context_tokens
        table.add_row(
            f"{row.context_tokens:,}",
            str(row.batch),
            row.system,
            f"{row.median_us:.2f}",
            f"{row.p99_us:.2f}",
            f"{row.cold_us:.2f}",
            f"{row.index_prompt_ms:.2f}",
            "-" if row.bytes_per_token is None else f"{row.bytes_per_token:.1f}",
        )
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
    for system, reason in sorted(
        {(row.system, row.skipped) for row in rows if row.skipped is not None}
    ):
        console.print(f"skipped {system}: {reason}", soft_wrap=True)
