"""Record the reference pair's traces in vLLM, at every position, and set stuck outputs apart.

    python training/reference_pair/record_traces.py --target work/SmolLM2-135M-Instruct \\
        --draft training/reference_pair/eagle3 -o eval/traces/reference-pair --work work/recording

The prompts are those of eval/prompts. Where a prompt has two user turns, the second is asked behind
the target's own answer to the first, and both are requests. Decoding is greedy, unless a
temperature is given. Outputs that ended in a loop go to OUT-loops, and those of fewer than
--shortest tokens nowhere; both are counted. What was kept is written as prompts to
WORK/prompts.jsonl, for `eval/servers`. A killed run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from loops import looping_tokens
from msgspec import structs

from adaspec.errors import AdaspecError
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import Manifest, Request
from adaspec.trace.writer import whole_trace

ROOT = Path(__file__).resolve().parents[2]
ENGINE = {
    "dtype": "float32",
    "max_model_len": 2048,
    "max_num_seqs": 16,
    "gpu_memory_utilization": 0.4,
    "enforce_eager": True,
    "distributed_executor_backend": "uni",
}
GRAIN = 256
"""Confidences are kept to one part in so many: finer ones tell no more, and do not compress."""


def prompts_of(folder: Path, only: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The prompts of a folder, file by file: of the files named so, or of all."""
    found, files = [], sorted(folder.glob("*.jsonl"))
    if missing := set(only) - {file.stem for file in files}:
        sys.exit(f"record_traces: {folder}: holds no {' or '.join(sorted(missing))}.jsonl")
    for file in files:
        if only and file.stem not in only:
            continue
        for at, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            where = f"record_traces: {file.name}, line {at}"
            try:
                prompt = json.loads(line)
            except ValueError as error:
                sys.exit(f"{where}: is no JSON: {error}")
            if not isinstance(prompt, dict) or not {"id", "workload", "messages"} <= prompt.keys():
                sys.exit(f"{where}: needs an object with id, workload and messages")
            found.append(prompt)
    if not found:
        sys.exit(f"record_traces: {folder}: holds no .jsonl file with prompts")
    return found


def users(prompt: dict[str, Any]) -> list[dict[str, str]]:
    """The user's turns."""
    return [message for message in prompt["messages"] if message["role"] == "user"]


def first_turns(prompts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every prompt up to its first user turn."""
    return [
        {**prompt, "id": f"{prompt['id']}/1", "messages": users(prompt)[:1]}
        if len(users(prompt)) > 1
        else prompt
        for prompt in prompts
    ]


def second_turns(
    prompts: Iterable[dict[str, Any]], answers: dict[tuple[str, str], str]
) -> list[dict[str, Any]]:
    """The second user turn of those that have one, behind what the target answered."""
    asked = []
    for prompt in prompts:
        turns = users(prompt)
        answer = answers.get((prompt["workload"], f"{prompt['id']}/1"))
        if len(turns) > 1 and answer is not None:
            messages = [turns[0], {"role": "assistant", "content": answer}, turns[1]]
            asked.append({**prompt, "id": f"{prompt['id']}/2", "messages": messages})
    return asked


def record(prompts: list[dict[str, Any]], file: Path, options: argparse.Namespace) -> None:
    """Put prompts through `adaspec record`; its own line says what went wrong."""
    file.write_text("".join(json.dumps(each) + "\n" for each in prompts), encoding="utf-8")
    command = [sys.executable, "-m", "adaspec", "record"]
    command += ["--model", str(options.target), "--draft", str(options.draft)]
    command += ["--prompts", str(file), "-o", str(options.work / "raw")]
    command += ["--k", str(options.k), "--max-tokens", str(options.max_tokens)]
    command += ["--temperature", str(options.temperature)]
    command += ["--engine", json.dumps({**ENGINE, **options.engine})]
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def answers_in(raw: TraceReader, tokenizer: Any) -> dict[tuple[str, str], str]:
    """What the target said to each request that was recorded."""
    return {
        (each.workload, each.id): tokenizer.decode(each.output_tokens, skip_special_tokens=True)
        for each in raw.requests()
    }


def sort_out(raw: TraceReader, shortest: int) -> dict[str, list[Request]]:
    """Requests by what becomes of them: kept, looping, short."""
    found: dict[str, list[Request]] = {"kept": [], "looping": [], "short": []}
    # By name, so that the order in which requests happened to end does not matter.
    for each in sorted(raw.requests(), key=lambda each: (each.workload, each.id)):
        if looping_tokens(each.output_tokens.tolist()):
            found["looping"].append(each)
        else:
            found["kept" if len(each.output_tokens) >= shortest else "short"].append(each)
    return found


def write(requests: Iterable[Request], manifest: Manifest, out: Path) -> None:
    """A trace of these requests, in place of an older one."""
    with whole_trace(out, manifest, force=True) as writer:
        for each in requests:
            assert each.confidences is not None
            coarse = np.round(each.confidences * GRAIN) / GRAIN
            writer.add(replace(each, confidences=coarse.astype(np.float32)))


def say(found: dict[str, list[Request]]) -> None:
    """How many requests and tokens became what, per workload."""
    workloads = sorted({each.workload for requests in found.values() for each in requests})
    for workload in workloads:
        parts = []
        for name, requests in found.items():
            mine = [each for each in requests if each.workload == workload]
            tokens = sum(len(each.output_tokens) for each in mine)
            parts.append(f"{name} {len(mine)} ({tokens:,} tokens)")
        print(f"{workload}: {', '.join(parts)}")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="what a killed run goes on from")
    parser.add_argument("--prompts", type=Path, default=ROOT / "eval" / "prompts")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="NAME.jsonl alone; repeatable"
    )
    parser.add_argument("--name", default="HuggingFaceTB/SmolLM2-135M-Instruct", help="of target")
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy")
    parser.add_argument("--shortest", type=int, default=64)
    parser.add_argument("--engine", type=json.loads, default={}, help="more of vLLM's arguments")
    options = parser.parse_args()
    if not isinstance(options.engine, dict):
        parser.error('--engine takes an object, such as {"max_num_seqs": 8}')
    prompts = prompts_of(options.prompts, options.only)
    try:
        from transformers import AutoTokenizer

        options.work.mkdir(parents=True, exist_ok=True)
    except ImportError as error:
        sys.exit(f"record_traces: {error.name} is not installed: it comes with vLLM")
    except OSError as error:
        sys.exit(f"record_traces: {options.work}: {error.strerror}")
    first = first_turns(prompts)
    record(first, options.work / "first-turns.jsonl", options)
    try:
        answers = answers_in(
            TraceReader(options.work / "raw"), AutoTokenizer.from_pretrained(options.target)
        )
        second = second_turns(prompts, answers)
        if second:
            record(second, options.work / "second-turns.jsonl", options)
        raw = TraceReader(options.work / "raw")
        found = sort_out(raw, options.shortest)
        manifest = structs.replace(
            raw.manifest,
            target=options.name,
            tokenizer=options.name,
            drafter=f"reference-pair/{options.draft.name}",
            source=f"training/reference_pair/{Path(__file__).name}",
        )
        write(found["kept"], manifest, options.output)
        if found["looping"]:
            loops = options.output.with_name(f"{options.output.name}-loops")
            write(found["looping"], manifest, loops)
    except AdaspecError as error:
        print(f"record_traces: {error}", file=sys.stderr)
        return 2
    kept = {(each.workload, each.id) for each in found["kept"]}
    again = [each for each in [*first, *second] if (each["workload"], each["id"]) in kept]
    text = "".join(json.dumps(each) + "\n" for each in again)
    (options.work / "prompts.jsonl").write_text(text, encoding="utf-8")
    say(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
