"""Measure adaspec on the GPU of this machine: stages, each in a process of its own, and a report.

    python eval/gpu/run.py --out results
    python eval/gpu/run.py --out results --stages lossless,costs-v2 --max-s 480
    python eval/gpu/run.py --out dry --dry-run

A stage that is done is not done again. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from plan import PARTS, Stage, Wanted, chosen, stages
from report import write_report
from results import DONE, FAILED, SCHEMA, read_json, write_json

HERE = Path(__file__).resolve().parent
LOG_LINES = 30
THROUGHPUT = "throughput"
"""The part that rounds.py measures."""


def is_done(stage: Stage, folder: Path) -> bool:
    """Whether a stage has been done with the same settings."""
    document = read_json(folder / "stages" / f"{stage.name}.json")
    if document is None or document.get("status") != DONE:
        return False
    return bool(document.get("settings") == _plain(stage.settings))


def _plain(settings: dict[str, Any]) -> Any:
    """Settings as JSON has them."""
    import json

    return json.loads(json.dumps(settings))


def batches(left: Sequence[Stage], dry_run: bool) -> Iterator[list[Stage]]:
    """What runs in one process: one stage, or in a dry run all of a model runner.

    A GPU's memory is free again only when a process has ended; a CPU's time goes into starting.
    """
    if not dry_run:
        yield from ([stage] for stage in left)
        return
    ordered = sorted(left, key=lambda stage: stage.runner, reverse=True)
    for _, same in groupby(ordered, key=lambda stage: stage.runner):
        yield list(same)


def run_batch(batch: Sequence[Stage], folder: Path) -> None:
    """Do a batch in a process of its own; what it leaves undone is written down as failed."""
    log, limit_s = folder / "logs" / f"{batch[0].name}.log", sum(each.limit_s for each in batch)
    with _started(batch, folder, log) as process:
        try:
            why = f"its process ended with exit code {process.wait(limit_s)}"
        except subprocess.TimeoutExpired:
            why = f"it was ended after {limit_s:.0f} s"
    _write_undone(batch, folder, log, why)


@contextmanager
def _started(batch: Sequence[Stage], folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does a batch; it is ended with all that it started."""
    log.parent.mkdir(exist_ok=True)
    paths = {stage.name: folder / "stages" / f"{stage.name}.json" for stage in batch}
    for path in paths.values():
        path.unlink(missing_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "stage.py"), str(folder), *paths],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=_environment(batch, folder),
            cwd=HERE.parents[1],
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # nobody of it is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _write_undone(batch: Sequence[Stage], folder: Path, log: Path, why: str) -> None:
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    for stage in batch:
        path = folder / "stages" / f"{stage.name}.json"
        if not path.exists():
            document = {"schema": SCHEMA, "stage": stage.name, "part": stage.part}
            document |= {"settings": stage.settings, "status": FAILED, "why": why, "log": lines}
            write_json(path, document)
            # The others of this process had not begun.
            why, lines = f"its process ended in {stage.name}", []


def _environment(batch: Sequence[Stage], folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    kept = {
        "PYTHONPATH": path,
        # Compiled graphs are there again for the next process.
        "VLLM_CACHE_ROOT": str(folder / "cache" / "vllm"),
    }
    return {**os.environ, **kept, **batch[0].variables}


def main() -> int:
    """Run the command line; 1 where a stage failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of all results")
    parts = ", ".join((*PARTS, THROUGHPUT))
    parser.add_argument("--stages", default="", help=f"parts ({parts}) or stages")
    parser.add_argument("--dry-run", action="store_true", help="tiny models, no GPU")
    parser.add_argument("--short", action="store_true", help="fewer requests and cells")
    parser.add_argument("--list", action="store_true", help="name the stages, and do none")
    parser.add_argument("--max-s", type=float, help="begin no stage after so many seconds")
    parser.add_argument("--policy", default="reference-pair-cpu", help="a trained policy")
    parser.add_argument("--target", type=Path, help="the folder of SmolLM2-135M-Instruct")
    parser.add_argument("--attention-backend", default="FLASH_ATTN", help="of vLLM")
    parser.add_argument("--cache", type=Path, help="where tiny models are kept")
    options = parser.parse_args()
    if not (options.dry_run or options.list or shutil.which("nvidia-smi")):
        parser.error("there is no GPU here: --dry-run tries the stages on tiny models")
    # Whoever ends this ends the stage that runs, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    target = options.target or folder / "models" / "SmolLM2-135M-Instruct"
    wanted = Wanted(
        out=folder,
        dry_run=options.dry_run,
        target=target.resolve(),
        policy=options.policy,
        backend=options.attention_backend,
        cache=(options.cache or folder / "cache").resolve(),
        short=options.short,
    )
    everything = stages(wanted)
    words = [word for word in options.stages.split(",") if word]
    in_rounds = not words or THROUGHPUT in words
    words = [word for word in words if word != THROUGHPUT]
    asked = [] if in_rounds and options.stages and not words else chosen(everything, words)
    if options.list or not (asked or in_rounds):
        print("\n".join(stage.name for stage in asked or everything))
        return 0 if asked else 2
    plan = {stage.name: asdict(stage) for stage in everything}
    plan_document = {"schema": SCHEMA, "dry_run": wanted.dry_run, "stages": plan}
    write_json(folder / "plan.json", plan_document)
    began_s = time.monotonic()
    left = [stage for stage in asked if not is_done(stage, folder)]
    for batch in batches(left, wanted.dry_run):
        if options.max_s is not None and time.monotonic() - began_s > options.max_s:
            break
        _do(batch, folder)
        write_report(folder, plan_document)
    left_s = None if options.max_s is None else options.max_s - (time.monotonic() - began_s)
    failed = in_rounds and (left_s is None or left_s > 0) and measure_rounds(options, left_s)
    write_report(folder, plan_document)
    print(f"The report: {folder / 'report.html'}")
    return int(failed) or _exit_code(asked, folder)


def measure_rounds(options: argparse.Namespace, left_s: float | None) -> bool:
    """Measure throughput, by engines side by side; whether that failed."""
    words = [sys.executable, str(HERE / "rounds.py"), "--out", str(options.out)]
    words += ["--groups", "A,B,C"]
    words += ["--dry-run", "--rounds", "1"] if options.dry_run else []
    words += [] if options.cache is None else ["--cache", str(options.cache)]
    words += [] if left_s is None else ["--max-s", str(left_s)]
    return subprocess.run(words, check=False).returncode != 0


def _do(batch: Sequence[Stage], folder: Path) -> None:
    """Do a batch, and say what came of it."""
    names = [stage.name for stage in batch]
    print(f"{', '.join(names)} ...", flush=True)
    began_s = time.monotonic()
    run_batch(batch, folder)
    for name in names:
        document = read_json(folder / "stages" / f"{name}.json") or {}
        why = f": {document['why']}" if document.get("why") else ""
        print(f"  {name}: {document.get('status')}{why}")
    print(f"  {time.monotonic() - began_s:.0f} s", flush=True)


def _exit_code(asked: Sequence[Stage], folder: Path) -> int:
    documents = [read_json(folder / "stages" / f"{stage.name}.json") or {} for stage in asked]
    return int(any(document.get("status") == FAILED for document in documents))


if __name__ == "__main__":
    sys.exit(main())
