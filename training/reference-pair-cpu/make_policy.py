"""Make the reference pair's policy and its reports again, from the shipped traces.

    python training/reference-pair-cpu/make_policy.py

Everything is cross-fitted: each request is decided by a model that never saw it. Once under the
step costs that `adaspec profile` measured on two CPU cores (cost.json), for the policy that ships,
and once under those of the H100, where a drafter's forward is cheap beside the target's.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NAME = "reference-pair-cpu"
FOLDS = 5
RESAMPLES, RESAMPLES_H100 = 20, 200
CPU_LOADS = "1,4,16"
H100 = "h100-llama-3.1-8b"
H100_LOADS = "1,8,32,128"


def adaspec(*arguments: object) -> None:
    """Run one command as a user would; what it says of a mistake is enough."""
    done = subprocess.run([sys.executable, "-m", "adaspec", *map(str, arguments)], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    """Cross-fit under both costs, then train what ships."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, default=ROOT / "eval" / "traces" / "reference-pair")
    parser.add_argument("--cost", type=Path, default=HERE / "cost.json", help="of the CPU")
    parser.add_argument("--policy", type=Path, default=ROOT / "policies" / NAME)
    parser.add_argument("--reports", type=Path, default=ROOT / "eval" / "reports")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folds", type=int, default=FOLDS)
    options = parser.parse_args()
    traces = options.traces
    common = ("--seed", options.seed, "--resamples", RESAMPLES, "--force")
    cpu = ("--cost", options.cost, "--concurrency", CPU_LOADS)
    h100 = ("--cost", H100, "--concurrency", H100_LOADS)
    crossed = ("--crossfit", options.folds)
    report = options.reports / NAME
    adaspec("train", traces, *crossed, *cpu, "-o", report, *common)
    judged = ("--crossfit-report", report)
    adaspec("train", traces, *cpu, *judged, "-o", options.policy, *common)
    other = options.reports / "reference-pair-h100"
    many = (*common[:2], "--resamples", RESAMPLES_H100, "--force", "--jobs", 1)
    adaspec("train", traces, *crossed, *h100, "-o", other, *many)


if __name__ == "__main__":
    main()
