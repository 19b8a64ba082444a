"""Make the shipped policy and its report again: import, cross-fit, train."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

NAME = "llama-3.1-8b-instruct-h100"
ROOT = Path(__file__).resolve().parents[2]
TARGET = "meta-llama/Llama-3.1-8B-Instruct"
VOCABULARY_SIZE = 128256
FOLDS, RESAMPLES = 5, 40


def adaspec(*arguments: object) -> None:
    """Run one command as a user would; what it says of a mistake is enough."""
    done = subprocess.run([sys.executable, "-m", "adaspec", *map(str, arguments)], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    """Import the recordings, cross-fit on all of them, then train what ships."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "recordings", type=Path, help="folder with the public simulator's combined_*.jsonl files"
    )
    parser.add_argument(
        "--traces", type=Path, default=Path("traces/llama-3.1-8b"), help="where they are imported"
    )
    parser.add_argument("--policy", type=Path, default=ROOT / "policies" / NAME)
    parser.add_argument("--report", type=Path, default=ROOT / "eval" / "reports" / f"{NAME}-async")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    traces, seed = options.traces, ("--seed", options.seed)
    if not traces.exists():
        of = ("--target", TARGET, "--vocabulary-size", VOCABULARY_SIZE)
        adaspec("import", "specdecode-bench", options.recordings, "-o", traces, *of)
    crossed = ("--crossfit", FOLDS, "--resamples", RESAMPLES, "--jobs", 1)
    adaspec("train", traces, *crossed, "-o", options.report, *seed, "--force")
    adaspec("train", traces, "-o", options.policy, *seed, "--force")


if __name__ == "__main__":
    main()
