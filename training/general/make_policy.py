"""Make the policy for any model again, from both sets of recordings.

    python training/general/make_policy.py traces/llama-3.1-8b

`traces/llama-3.1-8b` is what `training/llama-3.1-8b-instruct-h100/make_policy.py` imports.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESAMPLES = 40


def main() -> None:
    """Train what ships."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama", type=Path, help="the imported recordings of Llama-3.1-8B")
    parser.add_argument("--pair", type=Path, default=Path("eval/traces/reference-pair"))
    parser.add_argument("--policy", type=Path, default=Path("policies/general"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    words = ["train", options.pair, options.llama, "--general", "-o", options.policy]
    words += ["--seed", options.seed, "--resamples", RESAMPLES, "--jobs", 1, "--force"]
    command = [sys.executable, "-m", "adaspec", *map(str, words)]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
