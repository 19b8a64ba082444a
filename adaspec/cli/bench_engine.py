"""`adaspec bench engine`: compare the methods in full servers, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from adaspec.bench.engine.methods import METHODS, BenchmarkOptions
from adaspec.cli.options import (
    Finite,
    check_drafter,
    draft_method_option,
    draft_option,
    engine_option,
    force_option,
    json_option,
    model_option,
    numbers_option,
    out_option,
    seed_option,
    whole_option,
)
from adaspec.cli.output import ProgressBar, print_json, print_lines, printable, remarks, results
from adaspec.documents import json_types
from adaspec.evaluate.render.terminal import print_table

MAX_CONCURRENCY = 1024


def methods(text: str) -> tuple[str, ...]:
    """The names of methods in a text, or a usage error that points out the unknown one."""
    names = [word.strip() for word in text.split(",")]
    for word in names:
        if word not in METHODS:
            raise click.BadParameter(f"no method '{word}' (known: {', '.join(METHODS)})")
    return tuple(dict.fromkeys(names))


@click.command("engine")
@model_option
@draft_option("EAGLE, EAGLE-3 or MTP head, or a draft model.")
@draft_method_option
@click.option(
    "--prompts",
    metavar="FILE.jsonl",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path, exists=True),
    help="Prompts as 'adaspec record' takes them; may be repeated.",
)
@out_option("DIR", "Where rounds, report and plot go; the same command goes on after a kill.")
@click.option(
    "--traces",
    metavar="TRACES",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="Dense traces by which every method's setting is chosen; may be repeated.",
)
@click.option("--cost", metavar="NAME|FILE", help="Step times to choose by, and for adaspec.")
@click.option(
    "--policy",
    "policies",
    metavar="DIR|SPEC",
    multiple=True,
    help="adaspec's policy; a second one runs on the mix alone.  [default: what a server takes]",
)
@click.option(
    "--methods",
    type=methods,
    metavar="NAME,..",
    default=",".join(METHODS),
    show_default=True,
    help="Who takes part; no speculation always does.",
)
@numbers_option("--concurrency", "1,4,16", "Requests running at once.", most=MAX_CONCURRENCY)
@whole_option("--rounds", 3, help="The same command with more of them goes on.")
@whole_option(
    "--requests",
    8,
    help="Per round and cell; at least four times as many as run at once, where several do.",
)
@whole_option("--max-tokens", 128)
@seed_option
@click.option(
    "--near-tie",
    type=Finite(min=0),
    help="Log-probabilities so close are a tie.  [default: 0.001 in float32, 0.25 in bfloat16]",
)
@click.option(
    "--mix-only", is_flag=True, help="Measure the mix of all workloads, and none of them alone."
)
@engine_option(" for every server")
@force_option("Begin anew where another benchmark lies.")
@json_option("Print the report for machines.")
def engine_command(out: Path, mix_only: bool, force: bool, as_json: bool, **options: Any) -> None:
    """Serve the same prompts by every method, and compare speed and outputs.

    Each method is a vLLM server of its own, over HTTP, at the setting that the evaluator finds best
    for the load on --traces; on the mix its runner-up runs too. Rounds are interleaved, and servers
    that wait are stopped in their tracks. Greedy outputs must be those of no speculation but for
    near-ties, which are listed; else the exit code is 1 and the request is named.

    \b
    Example:
      adaspec bench engine --model M --draft EAGLE_HEAD --prompts prompts.jsonl \\
        --traces traces/recorded --cost cost.json --policy policies/mine -o bench
    """
    check_drafter(options["draft"], options["draft_method"])
    # Imported here because the evaluator takes a second to load, and --help should be quick.
    from adaspec.bench.engine.page import page, save_plot, sentences, tables
    from adaspec.bench.engine.report import complaint
    from adaspec.bench.engine.run import bench_engine

    benchmark = BenchmarkOptions(out=out, workloads=not mix_only, **options)
    with ProgressBar() as bar:
        report = json_types(bench_engine(benchmark, force, bar))
    text = json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    (out / "report.json").write_text(text, encoding="utf-8")
    plot = save_plot(report, out / "speedup.png")
    written = out / "report.md"
    written.write_text(page(report, plot.name), encoding="utf-8")
    if as_json:
        print_json(report)
    else:
        console = results()
        for table in tables(report):
            print_table(table, console)
        console.print()
        print_lines(console, *sentences(report))
    remarks().print(f"written: {written}, {out / 'report.json'}, {plot}", soft_wrap=True)
    wrong = complaint(report)
    if wrong is not None:
        click.echo(f"adaspec: error: {printable(wrong)}", err=True)
        raise click.exceptions.Exit(1)
