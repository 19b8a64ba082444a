"""`adaspec record`: run prompts and record a trace."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from adaspec.cli.options import (
    check_drafter,
    drafter_options,
    engine_option,
    json_option,
    out_option,
    seed_option,
)
from adaspec.cli.output import ProgressBar, print_json, remark
from adaspec.vllm.options import MAX_VERIFIED


@click.command("record")
@drafter_options()
@click.option(
    "--prompts", metavar="FILE.jsonl", required=True, type=click.Path(path_type=Path, exists=True)
)
@out_option("TRACES")
@click.option(
    "--k",
    type=click.IntRange(1, MAX_VERIFIED),
    default=8,
    show_default=True,
    help="Tokens drafted at every position: the longest draft that can be replayed.",
)
@click.option("--max-tokens", type=click.IntRange(min=1), default=512, show_default=True)
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True)
@seed_option
@engine_option
@json_option
def command(as_json: bool, **options: Any) -> None:
    """Run prompts through vLLM and record at every position what the drafter would have done.

    Outputs are as without speculation: drafts are compared with what came, never proposed. What is
    in TRACES already is not recorded again, so after a kill the same command goes on.

    \b
    A prompt a line, by text, chat messages or token ids:
      {"workload": "chat", "id": "7", "messages": [{"role": "user", "content": "Hello"}]}
      {"workload": "edit", "id": "1", "text": "def add(a, b):"}
      {"workload": "edit", "id": "2", "prompt_token_ids": [1, 2, 3]}

    \b
    Example:
      adaspec record --model M --draft EAGLE_HEAD --prompts prompts.jsonl -o traces/mine
    """
    check_drafter(options["draft"], options["draft_method"])
    # Imported here because vLLM takes seconds to load, and --help should be quick.
    from adaspec.vllm.commands import RecordOptions, record

    with ProgressBar() as bar:
        report = record(RecordOptions(**options), bar)
    if as_json:
        print_json(asdict(report))
        return
    remark(
        f"{options['out']}: a trace of {report.requests:,} requests, {report.recorded:,} of "
        f"them recorded now, {report.found:,} found there"
    )
    for line in report.refused:
        remark(f"  not taken by vLLM: {line}")
    if report.missing:
        remark(
            f"  {report.missing:,} prompts are missing: too near the model's longest length, or "
            "the disk was full"
        )
