"""A dense trace without what its neural drafter did: what an operator who has none would record.

python eval/without_drafter.py traces/llama-3.1-8b -o traces/llama-3.1-8b-no-drafter
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from adaspec.errors import AdaspecError
from adaspec.trace.reader import read_trace
from adaspec.trace.writer import write_trace


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True, help="the trace to write")
    parser.add_argument("--force", action="store_true", help="replace a trace that is there")
    arguments = parser.parse_args()
    drafted = ("neural_accepted", "drafted_tokens", "confidences")
    try:
        reader = read_trace(arguments.traces)
        requests = [replace(each, **dict.fromkeys(drafted)) for each in reader.requests()]
        none = {"drafter": None, "neural_cap": None, "draft_cap": None, "confidences": ()}
        manifest = replace(reader.manifest, **none)
        write_trace(arguments.out, requests, manifest=manifest, force=arguments.force)
    except (AdaspecError, OSError) as error:
        print(f"without_drafter: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.out}: {len(requests):,} requests")
    return 0


if __name__ == "__main__":
    sys.exit(main())
