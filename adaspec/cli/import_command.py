"""`adaspec import`: turn recordings made by other tools into a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from adaspec.cli.options import force_option, json_option, out_option
from adaspec.cli.output import ProgressBar, print_json, remark
from adaspec.trace.importers import FORMATS, TEXTS, import_trace


@click.command("import")
@click.argument("format", metavar="|".join(sorted([*FORMATS, TEXTS])))
@click.argument("sources", metavar="SRC...", nargs=-1, required=True, type=click.Path())
@out_option("TRACES")
@click.option("--target", metavar="HUB_ID", help="The model that was served.")
@click.option("--drafter", metavar="NAME", help="The neural drafter that ran beside it.")
@click.option(
    "--vocabulary-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens of its tokenizer, added ones included: servers of another number refuse a policy "
    "that is trained on it.",
)
@click.option("--tokenizer", metavar="DIR|HUB_ID", help="What makes tokens of texts.")
@force_option
@json_option
def command(
    format: str, sources: tuple[str, ...], out: Path, as_json: bool, **options: Any
) -> None:
    """Turn recordings (files or folders SRC) into the trace folder TRACES, whole or not at all.

    \b
    specdecode-bench  the public recordings of github.com/SpecDecode-Bench/simulator,
                      combined_*.jsonl or *.jsonl: n-gram and neural, ready for eval
    jsonl             a request a line:
                      {"workload": "chat", "id": "7", "prompt_token_ids": [1, 2],
                       "output_token_ids": [3, 4], "neural_accepted": [null, 0]}
                      prompt and output suffice for n-gram policies. Optional, each by
                      position with entry 0 null: neural_accepted, drafted_tokens,
                      logprob, margin, entropy, ngram_accepted. And max_tokens, the
                      most output tokens that the request was allowed
    texts             what OpenAI's and vLLM's clients have, by --tokenizer:
                      {"messages": [.., {"role": "assistant", "content": ".."}]}
                      {"prompt": "..", "completion": ".."}
                      {"request": {..}, "response": {"choices": [..]}}

    \b
    Example:
      adaspec import specdecode-bench data/llama3.1-8B -o traces/llama-8b \\
        --target meta-llama/Llama-3.1-8B-Instruct --drafter EAGLE
      adaspec import jsonl requests.jsonl -o traces/mine
      adaspec import texts chats.jsonl --tokenizer MODEL -o traces/chats
    """
    with ProgressBar() as bar:

        def progress(done: int, total: int) -> None:
            bar("reading MB", done / 1e6, total / 1e6)

        summary = import_trace(format, sources, out, progress=progress, **options)
    if as_json:
        print_json(summary)
        return
    counted = f"a trace of {summary['requests']:,} requests"
    if summary["drafter"] is None:
        counted += ", for n-gram drafts alone: it holds no neural counts"
    remark(f"{out}: {counted}")
    for workload, requests in summary["workloads"].items():
        remark(f"  {workload}: {requests:,}")
    for note, times in summary["notes"].items():
        remark(f"  note: {note}: {times:,}")
