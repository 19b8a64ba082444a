"""Make the committed reports again, each by the command that it names, and then the tables.

    python eval/evidence.py                      # all of them: some hours
    python eval/evidence.py reference-pair-h100-async  # these alone
    python eval/evidence.py --list               # what would run

Every report says which command made it, so none stands here twice; here is what those commands need
that is not committed, and which reports are made another way.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
REPORTS = Path("eval") / "reports"
PREPARED = {
    "traces/llama-3.1-8b": "adaspec import specdecode-bench $SPECDECODE_BENCH "
    "-o traces/llama-3.1-8b --target meta-llama/Llama-3.1-8B-Instruct --drafter EAGLE --force",
    "work/general-of-llama": "adaspec train traces/llama-3.1-8b --general "
    "-o work/general-of-llama --orders 1 --resamples 0 --jobs 1 --force",
    "work/general-of-reference-pair": "adaspec train eval/traces/reference-pair --general "
    "-o work/general-of-reference-pair --orders 1 --resamples 0 --jobs 1 --force",
    "work/reference-pair-h100": "adaspec train eval/traces/reference-pair "
    "-o work/reference-pair-h100 --orders 1 --resamples 0 --jobs 1 --force",
    "work/sync-reference-pair": "adaspec train eval/traces/reference-pair --engine sync "
    "-o work/sync-reference-pair --orders 1 --resamples 0 --jobs 1 --force",
    "work/sync-llama-3.1-8b": "adaspec train traces/llama-3.1-8b --engine sync "
    "-o work/sync-llama-3.1-8b --orders 1 --resamples 0 --jobs 1 --force",
    "work/SmolLM2-135M-Instruct": "python training/reference_pair/fetch_target.py "
    "-o work/SmolLM2-135M-Instruct",
    "work/spec-bench-prompts": "python eval/spec_bench.py $SPEC_BENCH -o work/spec-bench-prompts",
    "work/spec-bench": "python training/reference_pair/record_traces.py "
    "--prompts work/spec-bench-prompts --target work/SmolLM2-135M-Instruct "
    "--draft training/reference_pair/eagle3 --shortest 16 "
    "-o work/spec-bench --work work/spec-bench-recording",
}
"""What commands read that is not committed -> the command that makes it."""
READ = {
    "traces/llama-3.1-8b": (
        "SPECDECODE_BENCH",
        "the public recordings (data/llama3.1-8B of github.com/SpecDecode-Bench/simulator)",
    ),
    "work/spec-bench-prompts": (
        "SPEC_BENCH",
        "Spec-Bench's questions (data/spec_bench/question.jsonl of github.com/hemingkx/Spec-Bench)",
    ),
}
"""What is made of others' data -> the variable that names it, and what it is."""
PRINTED = {
    "decide": "python eval/decide.py --json",
}
"""Reports that are what a command prints."""
BY_HAND = {
    "gpu-h100": "it takes a GPU: its README.md has the commands",
    "token-tables": "a cross-fit of a trainer that was changed for it: its README.md says how",
    "servers": "servers in turns for hours, by eval/servers/compare.py",
}
"""Reports that this does not make -> why, and where their commands stand."""


def reports() -> dict[str, str]:
    """Report -> the command that makes it, for all that are not made by hand."""
    found = dict(PRINTED)
    for path in sorted((CHECKOUT / REPORTS).rglob("report.json")):
        name = path.parent.relative_to(CHECKOUT / REPORTS).as_posix()
        if name.partition("/")[0] not in BY_HAND and name not in found:
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
    for path, (variable, what) in READ.items():
        if path in before and variable not in os.environ:
            sys.exit(f"evidence: set {variable} to the path of {what}")
    (CHECKOUT / "work").mkdir(exist_ok=True)
    (CHECKOUT / "traces").mkdir(exist_ok=True)
    failed = [path for path in before if not run(PREPARED[path], None)]
    for name, command in wanted.items():
        printed = CHECKOUT / REPORTS / name / "report.json" if name in PRINTED else None
        if set(needed([command])) & set(failed) or not run(command, printed):
            failed.append(name)
    if not run("python eval/summary.py", None):
        failed.append("tables")
    for name, why in BY_HAND.items():
        print(f"not made here: {name}, {why}")
    if failed:
        sys.exit(f"evidence: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
