"""`adaspec bench`: how long what adaspec does takes here."""

from __future__ import annotations

from dataclasses import asdict

import click

from adaspec.cli.options import json_option, numbers_option, whole_option
from adaspec.cli.output import ProgressBar, print_json, results
from adaspec.evaluate.plain_table import Table
from adaspec.profile import decide as deciding

_TIMES_US = {
    "median": "median_us",
    "p99": "p99_us",
    "look-up": "lookup_us",
    "before": "before_us",
    "read": "read_us",
    "after": "after_us",
}
"""Heads of columns, and the figures under them."""


@click.group("bench")
def command() -> None:
    """How fast adaspec is on this machine.

    \b
    Example:
      adaspec bench decide --policy policies/mine
    """


@command.command("decide")
@click.option(
    "--policy",
    "policies",
    metavar="DIR|NAME",
    multiple=True,
    help="A trained policy; may be repeated.  [default: each shipped one]",
)
@numbers_option("--contexts", "1024,4096,32768", "Context lengths in tokens.", most=1 << 20)
@numbers_option("--batches", "1,8,32,128,256", "How many requests one step serves.", most=4096)
@whole_option("--steps", 400, most=1_000_000, help="Steps per batch and context.")
@click.option(
    "--cold", is_flag=True, help="Decide from swept caches, as beside a model on the same cores."
)
@json_option("Print JSON, and nothing else, to stdout.")
def decide(
    policies: tuple[str, ...],
    contexts: tuple[int, ...],
    batches: tuple[int, ...],
    steps: int,
    cold: bool,
    as_json: bool,
) -> None:
    """Time a learned policy's whole step as a server on V1 takes it.

    Several policies follow each other at every batch and context, on the same requests.

    Every step takes in what the last one emitted, learns from it, looks up and predicts, reads a
    draft of three tokens with confidences, and chooses what is verified. About half the requests
    have a match. Requests are made up.

    With --cold, 64 MB are read before each of these calls: that is several times slower than from
    warm caches, and about what a server pays whose model runs on the same cores.

    \b
    Example:
      adaspec bench decide --policy policies/mine --batches 1,128
    """
    with ProgressBar() as bar:
        benched = deciding.find_benched(policies)
        rows = deciding.bench_decide(benched, contexts, batches, steps, bar, cold)
    if as_json:
        print_json({"rows": [asdict(row) for row in rows]})
        return
    cells = [
        [
            row.policy,
            f"{row.context_tokens:,}",
            *map(str, (row.batch, row.drafted)),
            *(f"{getattr(row, name):.1f}" for name in _TIMES_US.values()),
        ]
        for row in rows
    ]
    sentence = (
        "Medians, but for p99. Look-up: taking in what came and looking up what follows, timed "
        "apart; before drafting; reading the draft; after it."
    )
    heads = ("policy", "context", "batch", "drafted", *_TIMES_US)
    table = Table("one decision, microseconds a step", heads, cells, sentence=sentence)
    table.print(results())
