"""The prompts of a dense trace, for `adaspec bench engine` or to record them again.

    python eval/prompts_of_trace.py eval/traces/reference-pair -o prompts.jsonl

One JSON object per request, with the workload, id and token ids that the trace has: a benchmark
then leaves out what a policy was trained on, and knows what to expect of every request.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from adaspec.errors import AdaspecError
from adaspec.trace.reader import open_traces


def prompts_of(traces: Iterable[Path]) -> list[dict[str, Any]]:
    """The prompt of every request, in the order of the traces."""
    return [
        {
            "workload": request.workload,
            "id": request.id,
            "prompt_token_ids": [int(token) for token in request.prompt_tokens],
        }
        for reader in open_traces(list(traces))
        for request in reader.requests()
    ]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True, help="the file to write")
    arguments = parser.parse_args()
    try:
        lines = [json.dumps(prompt) + "\n" for prompt in prompts_of(arguments.traces)]
        partial = arguments.out.with_name(f"{arguments.out.name}.partial")
        partial.write_text("".join(lines), encoding="utf-8")
        partial.replace(arguments.out)
    except (AdaspecError, OSError) as error:
        print(f"prompts_of_trace: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.out}: {len(lines):,} prompts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
