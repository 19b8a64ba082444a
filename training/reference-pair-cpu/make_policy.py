"""Make the reference pair's policy and its report again, from the shipped traces.

    python training/reference-pair-cpu/make_policy.py

The report is cross-fitted: each request is decided by a model that never saw it. Both rest on the
step costs that `adaspec profile` measured on two CPU cores (cost.json), and on the order of events
of model runner V1, which serves there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path("training/reference-pair-cpu")
NAME = "reference-pair-cpu"
FOLDS = 5
RESAMPLES = 20
LOADS = "1,4,16"


def adaspec(*arguments: object) -> None:
    """Run one command in the checkout, as reports name it; what it says of a mistake is enough."""
    command = [sys.executable, "-m", "adaspec", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    """Cross-fit, then train what ships."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, default=Path("eval/traces/reference-pair"))
    parser.add_argument("--cost", type=Path, default=HERE / "cost.json", help="of the CPU")
    parser.add_argument("--policy", type=Path, default=Path("policies") / NAME)
    parser.add_argument("--reports", type=Path, default=Path("eval/reports"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folds", type=int, default=FOLDS)
    options = parser.parse_args()
    traces = options.traces
    common = ("--seed", options.seed, "--resamples", RESAMPLES, "--force")
    cpu = ("--cost", options.cost, "--concurrency", LOADS, "--engine", "sync")
    crossed = ("--crossfit", options.folds)
    adaspec("train", traces, *crossed, *cpu, "-o", options.reports / NAME, *common)
    adaspec("train", traces, *cpu, "-o", options.policy, *common)


if __name__ == "__main__":
    main()
