"""`adaspec bench engine`: whole servers side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from adaspec.bench.engine.methods import METHODS, BenchmarkOptions
from adaspec.cli.numbers import Finite, WholeNumbers
from adaspec.cli.objects import JsonObject
from adaspec.cli.options import check_drafter, draft_method_option, model_option, seed_option
from adaspec.cli.output import ProgressBar, print_json, printable, remarks, results
from adaspec.documents import json_types
from adaspec.evaluate.render.terminal import print_table

MAX_CONCURRENCY = 1024


class Methods(click.ParamType[tuple[str, ...]]):
    """Names of methods, separated by commas."""

    name = "NAME,.."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The names, or a usage error that names the word that is none."""
        if isinstance(value, tuple):
            return value
        found = [word.strip() for word in str(value).split(",")]
        for word in found:
            if word not in METHODS:
                self.fail(f"no method '{word}' (known: {', '.join(METHODS)})", param, ctx)
        return tuple(dict.fromkeys(found))


@click.command("engine")
@model_option
@click.option("--draft", metavar="HEAD", help="EAGLE, EAGLE-3 or MTP head, or a draft model.")
@draft_method_option
@click.option(
    "--prompts",
    metavar="FILE.jsonl",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path, exists=True),
    help="Prompts as 'adaspec record' takes them; may be repeated.",
)
@click.option(
    "-o",
    "--out",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path),
    help="Where rounds, report and plot go; the same command goes on after a kill.",
)
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
    type=Methods(),
    default=",".join(METHODS),
    show_default=True,
    help="Who takes part; no speculation always does.",
)
@click.option(
    "--concurrency",
    type=WholeNumbers(MAX_CONCURRENCY),
    default="1,4,16",
    show_default=True,
    help="Requests running at once.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="The same command with more of them goes on.",
)
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Per round and cell; at least four times as many as run at once, where several do.",
)
@click.option("--max-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@seed_option
@click.option(
    "--near-tie",
    type=Finite(min=0),
    help="Log-probabilities so close are a tie.  [default: 0.001 in float32, 0.25 in bfloat16]",
)
@click.option(
    "--mix-only", is_flag=True, help="Measure the mix of all workloads, and none of them alone."
)
@click.option(
    "--engine",
    metavar="JSON",
    type=JsonObject(),
    default="{}",
    help="vLLM's own arguments for every server, such as '{\"max_model_len\": 8192}'.",
)
@click.option("--force", is_flag=True, help="Begin anew where another benchmark lies.")
@click.option("--json", "as_json", is_flag=True, help="Print the report for machines.")
def engine_command(
    model: str,
    draft: str | None,
    draft_method: str | None,
    prompts: tuple[Path, ...],
    out: Path,
    traces: tuple[Path, ...],
    cost: str | None,
    policies: tuple[str, ...],
    methods: tuple[str, ...],
    concurrency: tuple[int, ...],
    rounds: int,
    requests: int,
    max_tokens: int,
    seed: int,
    near_tie: float | None,
    mix_only: bool,
    engine: dict[str, Any],
    force: bool,
    as_json: bool,
) -> None:
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
    check_drafter(draft, draft_method)
    # Imported here: the evaluator takes a second to load, --help should not.
    from adaspec.bench.engine.page import page, save_plot
    from adaspec.bench.engine.report import complaint
    from adaspec.bench.engine.run import bench_engine

    options = BenchmarkOptions(
        model=model,
        prompts=prompts,
        out=out,
        draft=draft,
        draft_method=draft_method,
        traces=traces,
        cost=cost,
        policies=policies,
        methods=methods,
        concurrency=concurrency,
        rounds=rounds,
        requests=requests,
        max_tokens=max_tokens,
        seed=seed,
        near_tie=near_tie,
        workloads=not mix_only,
        engine=engine,
    )
    with ProgressBar() as bar:
        report = json_types(bench_engine(options, force, bar))
    text = json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    (out / "report.json").write_text(text, encoding="utf-8")
    plot = save_plot(report, out / "speedup.png")
    written = out / "report.md"
    written.write_text(page(report, plot.name), encoding="utf-8")
    if as_json:
        print_json(report)
    else:
        _print(report)
    said = remarks()
    said.print(f"written: {written}, {out / 'report.json'}, {plot}", soft_wrap=True)
    wrong = complaint(report)
    if wrong is not None:
        click.echo(f"adaspec: error: {printable(wrong)}", err=True)
        raise click.exceptions.Exit(1)


def _print(report: dict[str, Any]) -> None:
    from adaspec.bench.engine.page import sentences, tables

    console = results()
    for table in tables(report):
        print_table(table, console)
    console.print()
    for sentence in sentences(report):
        console.print(printable(sentence), soft_wrap=True, markup=False)
