"""The prompts of a trace, for `eval/servers` or to record them again.

    python eval/prompts_of_trace.py eval/traces/reference-pair -o prompts.jsonl

One JSON object per request, with the workload, id and token ids that the trace has.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from adaspec.errors import AdaspecError
from adaspec.evaluate.selection import content_hash
from adaspec.policy.protocol import load_policy
from adaspec.trace.reader import open_traces


def prompts_of(traces: Iterable[Path], policies: Iterable[str]) -> list[dict[str, Any]]:
    """The prompt of every request that no policy was trained on, in the order of the traces."""
    manifests = [load_policy(policy).manifest for policy in policies]
    seen = {each for manifest in manifests if manifest for each in manifest.training_requests}
    return [
        {
            "workload": request.workload,
            "id": request.id,
            "prompt_token_ids": [int(token) for token in request.prompt_tokens],
        }
        for reader in open_traces(list(traces))
        for request in reader.requests()
        if content_hash(request) not in seen
    ]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True, help="the file to write")
    parser.add_argument(
        "--unseen-by", metavar="POLICY", action="append", default=[], help="may be repeated"
    )
    arguments = parser.parse_args()
    try:
        lines = [
            json.dumps(prompt) + "\n"
            for prompt in prompts_of(arguments.traces, arguments.unseen_by)
        ]
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
