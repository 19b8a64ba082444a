"""Make the committed reports again, each by the command that it names, and then the tables.

    python eval/evidence.py                      # all of them: most of a day
    python eval/evidence.py reference-pair-h100  # these alone
    python eval/evidence.py --list               # what would run

Every report says which command made it, so none stands here twice; here is what those commands need
that is not committed, and which reports are made another way.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
REPORTS = Path("eval") / "reports"
DEMO, PREPARED_BY_DEMO = "make demo", "demo/SmolLM2-135M-Instruct"
PREPARED = {
    "traces/llama-3.1-8b": "adaspec import specdecode-bench $SPECDECODE_BENCH "
    "-o traces/llama-3.1-8b --target meta-llama/Llama-3.1-8B-Instruct --drafter EAGLE --force",
    "work/reference-pair-h100": "adaspec train eval/traces/reference-pair --cost h100-llama-3.1-8b "
    "--concurrency 1,8,32,128 --resamples 0 --seed 0 -o work/reference-pair-h100 --force",
    "work/reference-pair-memory": "adaspec train eval/traces/reference-pair --memory "
    "--cost h100-llama-3.1-8b --concurrency 1,8,32,128 --resamples 0 --seed 0 "
    "-o work/reference-pair-memory --force",
    "work/llama-3.1-8b": "adaspec train traces/llama-3.1-8b --cost h100-llama-3.1-8b "
    "--resamples 0 --orders 1 --seed 0 -o work/llama-3.1-8b --force",
    "work/llama-3.1-8b-memory": "adaspec train traces/llama-3.1-8b --memory "
    "--cost h100-llama-3.1-8b --resamples 0 --orders 1 --seed 0 "
    "-o work/llama-3.1-8b-memory --force",
    "traces/llama-3.1-8b-no-drafter": "python eval/without_drafter.py traces/llama-3.1-8b "
    "-o traces/llama-3.1-8b-no-drafter --force",
    "work/no-drafter": "adaspec train traces/llama-3.1-8b-no-drafter --cost h100-llama-3.1-8b "
    "--resamples 0 --orders 1 --seed 0 -o work/no-drafter --force",
    "work/no-drafter-memory": "adaspec train traces/llama-3.1-8b-no-drafter --memory "
    "--cost h100-llama-3.1-8b --resamples 0 --orders 1 --seed 0 -o work/no-drafter-memory --force",
    PREPARED_BY_DEMO: DEMO,
} | {
    f"work/llama-3.1-8b-without-{workload}": "adaspec train traces/llama-3.1-8b "
    f"--exclude-workload {workload} --cost h100-llama-3.1-8b --resamples 0 --orders 1 --seed 0 "
    f"-o work/llama-3.1-8b-without-{workload} --force"
    for workload in ("cnn", "gsm8k", "instructcoder", "sharegpt")
}
"""What commands read that is not committed -> the command that makes it."""
PRINTED = {
    "decide": "adaspec bench decide --json",
    "memory-lookup": "adaspec bench memory --json",
}
"""Reports that are what a command prints."""
COPIED = {"demo": "demo/times.json"}
"""Reports that a command writes elsewhere."""
BY_HAND = {
    "reference-pair-engine": "servers in turns for hours: its README.md has the commands",
}
"""Reports that this does not make -> why, and where their commands stand."""


def reports() -> dict[str, str]:
    """Report -> the command that makes it, for all that are not made by hand."""
    found = dict(PRINTED)
    for path in sorted((CHECKOUT / REPORTS).rglob("report.json")):
        name = path.parent.relative_to(CHECKOUT / REPORTS).as_posix()
        if name.partition("/")[0] not in BY_HAND and name not in PRINTED:
            found[name] = json.loads(path.read_text(encoding="utf-8"))["command"]
    return found


def needed(commands: list[str]) -> list[str]:
    """What has to be there before these commands run, and is not committed."""
    words = {word for command in commands for word in shlex.split(command)}
    for path, command in reversed(PREPARED.items()):
        if path in words:
            words.update(shlex.split(command))
    return [path for path in PREPARED if path in words]


def run(command: str, out: Path | None) -> bool:
    """Run a command in the checkout with this Python; `out` takes what it prints."""
    print(f"$ {command}", flush=True)
    words = [os.path.expandvars(word) for word in shlex.split(command)]
    head = {"adaspec": [sys.executable, "-m", "adaspec"], "python": [sys.executable]}
    words = [*head.get(words[0], words[:1]), *words[1:]]
    done = subprocess.run(words, cwd=CHECKOUT, stdout=None if out is None else subprocess.PIPE)
    if out is not None and done.returncode == 0:
        out.write_bytes(done.stdout)
    return done.returncode == 0


def main() -> None:
    """Make what was asked for; exit code 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", metavar="REPORT", help="all of them where none is named"
    )
    parser.add_argument("--list", action="store_true", help="say what would run")
    options = parser.parse_args()
    known = reports()
    for name in options.names:
        if name not in known:
            sys.exit(f"evidence: no report '{name}': one of {', '.join(known)}")
    wanted = {name: known[name] for name in options.names or known}
    before = needed(list(wanted.values()))
    if options.list:
        print(*(PREPARED[path] for path in before), *wanted.values(), sep="\n")
        return
    if "traces/llama-3.1-8b" in before and "SPECDECODE_BENCH" not in os.environ:
        sys.exit(
            "evidence: set SPECDECODE_BENCH to the folder of the public recordings "
            "(data/llama3.1-8B of github.com/SpecDecode-Bench/simulator)"
        )
    (CHECKOUT / "work").mkdir(exist_ok=True)
    (CHECKOUT / "traces").mkdir(exist_ok=True)
    failed = [path for path in before if not run(PREPARED[path], None)]
    for name, command in wanted.items():
        printed = CHECKOUT / REPORTS / name / "report.json" if name in PRINTED else None
        # Whoever needs what the demo fetched has run it by now.
        done = command == DEMO and PREPARED_BY_DEMO in before
        if set(needed([command])) & set(failed) or not (done or run(command, printed)):
            failed.append(name)
        elif name in COPIED:
            shutil.copy(CHECKOUT / COPIED[name], CHECKOUT / REPORTS / name / "report.json")
    if not run("python eval/summary.py", None):
        failed.append("tables")
    for name, why in BY_HAND.items():
        print(f"not made here: {name}, {why}")
    if failed:
        sys.exit(f"evidence: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
