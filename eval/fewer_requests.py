"""A dense trace of a share of another's requests: what less traffic would have recorded.

python eval/fewer_requests.py eval/traces/reference-pair --share 0.25 -o traces/a-quarter

Chosen by a hash of the dialogue, so that all of its turns are in or none, and a smaller share is
part of a larger one.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from adaspec.errors import AdaspecError
from adaspec.trace.dialogues import dialogue_hashes
from adaspec.trace.reader import read_trace
from adaspec.trace.writer import write_trace


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("--share", type=float, required=True, help="of the dialogues, 0 to 1")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the trace to write")
    parser.add_argument("--force", action="store_true", help="replace a trace that is there")
    arguments = parser.parse_args()
    if not 0 < arguments.share <= 1:
        parser.error(f"--share {arguments.share}: above 0 and at most 1")
    try:
        reader = read_trace(arguments.traces)
        requests = list(reader.requests())
        kept = [
            request
            for request, dialogue in zip(requests, dialogue_hashes(requests), strict=True)
            if _place(dialogue) < arguments.share
        ]
        write_trace(arguments.out, kept, manifest=reader.manifest, force=arguments.force)
    except (AdaspecError, OSError) as error:
        print(f"fewer_requests: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.out}: {len(kept):,} of {len(requests):,} requests")
    return 0


def _place(dialogue: str) -> float:
    """Where in 0 to 1 a dialogue lies, by its hash."""
    digest = hashlib.sha256(f"share: {dialogue}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


if __name__ == "__main__":
    sys.exit(main())
