"""`adaspec estimate`: what speculation could gain and what memory it needs, by formulas."""

from __future__ import annotations

import itertools
from dataclasses import asdict

import click
from rich.table import Table

from adaspec.cli.group import NamingGroup
from adaspec.cli.options import (
    Finite,
    Option,
    check_drafter,
    draft_option,
    json_option,
    numbers_option,
)
from adaspec.cli.output import add_columns, print_json, results
from adaspec.cost.memory import METHODS, drafter_method, load_shapes, memory, usual_heads
from adaspec.cost.speedup import sweep

SCHEMA = 1


@click.group("estimate", cls=NamingGroup)
def command() -> None:
    """What speculation could gain and what memory it needs, by formulas alone.

    \b
    Example:
      adaspec estimate speedup --alpha 0.6,0.8 --c 0.1
      adaspec estimate memory llama-3.1-8b
    """


def _fractions_option(flag: str, default: str, most: float | None, help: str) -> Option:
    """An option that takes numbers from 0 to `most`; they are sorted, without repeats."""
    kind = Finite(min=0, max=most)

    def read(text: str) -> tuple[float, ...]:
        return tuple(sorted({kind.convert(word.strip(), None, None) for word in text.split(",")}))

    return click.option(
        flag, type=read, metavar="X,X,..", default=default, show_default=True, help=help
    )


@command.command("speedup")
@_fractions_option(
    "--alpha", "0.5,0.6,0.7,0.8,0.9", 1, "Chance that a token is accepted if those before it were."
)
@_fractions_option("--c", "0.02,0.1,0.4", None, "Time of a drafter's forward over a target's.")
@numbers_option("--k", "1,2,3,4,5,6,7,8", "Tokens per draft.", most=128)
@json_option()
def speedup(
    alpha: tuple[float, ...], c: tuple[float, ...], k: tuple[int, ...], as_json: bool
) -> None:
    """Expected speedup (1 - alpha^(k+1)) / ((1 - alpha) (ck + 1)), and the best k.

    It takes verifying a draft to cost no more than one token, which holds while few requests run,
    and every token to be accepted alike. The best k is marked, and is 0 where no draft pays. `eval`
    replays real acceptance under real step times.

    \b
    Example:
      adaspec estimate speedup --alpha 0.6,0.8 --c 0.05,0.1 --k 1,3,5
    """
    points = sweep(alpha, c, k)
    if as_json:
        print_json({"schema": SCHEMA, "rows": [asdict(point) for point in points]})
        return
    table = Table(box=None, pad_edge=False)
    add_columns(table, "c", "alpha", *(f"k = {length}" for length in k), "best k")
    for (c_of, alpha_of), group in itertools.groupby(points, lambda each: (each.c, each.alpha)):
        _, *drafts = points_of_row = list(group)
        (best,) = (point.k for point in points_of_row if point.best)
        cells = [f"{point.speedup:.2f}{'*' if point.best else ' '}" for point in drafts]
        table.add_row(f"{c_of:g}", f"{alpha_of:g}", *cells, str(best))
    results().print(table)


@command.command("memory")
@click.argument("model")
@draft_option("The drafter, named as MODEL is.  [default: EAGLE and EAGLE-3 heads as published]")
@click.option(
    "--draft-method",
    type=click.Choice(METHODS),
    help="What HEAD is, where its config does not say.",
)
@json_option()
def memory_command(model: str, draft: str | None, draft_method: str | None, as_json: bool) -> None:
    """Memory of MODEL's weights, and of its KV cache per token, alone and with a drafter.

    MODEL is a folder, a config.json, or one of llama-3.1-8b, llama-3-70b, qwen3-8b and qwen3-0.6b.
    N-gram drafting takes none. An EAGLE head has one layer as wide as the target's; an EAGLE-3 head
    an LM head of its own besides, for 32,000 tokens.

    \b
    Example:
      adaspec estimate memory llama-3.1-8b
      adaspec estimate memory qwen3-8b --draft qwen3-0.6b
    """
    check_drafter(draft, draft_method)
    target = load_shapes(model)
    if draft is None:
        drafters = usual_heads(target)
    else:
        drafter = load_shapes(draft)
        method = draft_method or drafter_method(drafter)
        if method is None:
            raise click.UsageError(f"{draft}: its config does not say what it is: --draft-method")
        drafters = {method: drafter}
    rows = memory(target, drafters)
    if as_json:
        print_json({"schema": SCHEMA, "model": model, "rows": [asdict(row) for row in rows]})
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("drafter")
    add_columns(table, "weights GiB", "more", "KV KiB per token", "more")
    for row in rows:
        weights, kv = row.weights_bytes, row.kv_bytes_per_token
        more = (weights / rows[0].weights_bytes - 1, kv / rows[0].kv_bytes_per_token - 1)
        table.add_row(
            "none, n-gram" if row.drafter == "none" else row.drafter,
            f"{weights / 2**30:.2f}",
            f"{more[0]:.1%}",
            f"{kv / 2**10:g}",
            f"{more[1]:.1%}",
        )
    results().print(table)
