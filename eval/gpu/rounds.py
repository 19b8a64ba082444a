"""Tokens per second of several methods, in turns, by engines that run side by side on one GPU.

    python eval/gpu/rounds.py --out results --max-s 500
    python eval/gpu/rounds.py --out dry --dry-run

The engines start at once, each in a process of its own, and stay until the end; whoever is not told
to measure does nothing. Every load is run once for warmth, then in rounds in which the methods take
turns, and then as `Measurement.after_rounds` says. What is measured is written at once; a round
that would not fit into the time is not begun. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from engines import CHECKOUT, write_shapes
from results import Lines, write_json

HERE = Path(__file__).resolve().parent
LLAMA_POLICY, PAIR_POLICY = "llama-3.1-8b-instruct-h100", "reference-pair-cpu"
PAIR, LLAMA, MODELS = "eval/traces/reference-pair", "eval/gpu/carry/llama", "eval/gpu/carry/models"
START_S = 210.0
"""An engine that is not ready after so long is left out."""
MEASURING_S = 90.0
"""How long an engine may take to measure its costs alone, and to be ready then."""
LOSSLESS_S = 30.0
"""How long all engines wait for the lossless runs at most: what is found is written as they run."""
CELL_S = 45.0
"""An engine that has not measured a cell after so long is left out from there on."""
SPARE = 1.15
"""How much longer than the one before a round may take."""
AFTER_S = 100.0
"""What is left of the time for all that comes after the rounds."""
TIMES_PLAIN = 1.25
"""The bound that steps are given at the end, in steps without speculation."""
HEAD = "HEAD"
"""Stands for the folder of the head's config."""
ROUND, PROFILE, REJECTED, BOUNDED = "round", "profile", "rejected", "bounded"
"""The stages: what counts; a profile of some steps; no draft accepted; no step beyond a bound."""


@dataclass(frozen=True)
class Engine:
    """One engine: what vLLM is told, and which methods are measured with it."""

    name: str
    config: dict[str, Any] | None = None
    """vLLM's speculative config."""
    lengths: dict[str, int | None] = field(default_factory=dict)
    """The methods, and the length of vLLM's drafts in each; the engine's name if there are none."""

    @property
    def methods(self) -> dict[str, int | None]:
        """The methods with their lengths."""
        return self.lengths or {self.name: None}


ENGINES = (
    Engine("none"),
    Engine(
        "eagle3",
        {
            "method": "eagle3",
            "model": HEAD,
            "num_speculative_tokens": 3,
            # A graph is captured for each length that is named; which one runs, a cell says.
            "num_speculative_tokens_per_batch_size": [[1, 1, 3], [2, 2, 2], [3, 128, 1]],
        },
        {f"eagle3-{length}": length for length in (1, 2, 3)},
    ),
    Engine(
        "ngram",
        {
            "method": "ngram_gpu",
            "num_speculative_tokens": 5,
            "prompt_lookup_min": 3,
            "prompt_lookup_max": 7,
        },
    ),
    Engine(
        "adaspec",
        {"method": "adaspec", "model": HEAD, "draft_method": "eagle3", "policy": LLAMA_POLICY},
    ),
)
"""What runs side by side. adaspec is told no costs: it measures them, as with its users."""


@dataclass(frozen=True)
class Plan:
    """How much is measured, and of what."""

    counted: dict[int, int]
    """By load, how many requests a cell counts: those of three seconds or so."""
    requests: dict[str, Any]
    """Which recordings are run, as `workload.recorded` takes it."""
    arguments: dict[str, Any]
    """What vLLM is told for every engine."""
    target: str
    head: str


def planned(cache: Path, dry_run: bool) -> Plan:
    """The plan for a GPU, or that of a dry run on a CPU."""
    size: dict[str, Any] = {"prompt_tokens": 512, "output_tokens": 160, "requests": 200}
    traces, policy, counted = LLAMA, LLAMA_POLICY, {1: 6, 8: 24, 32: 64, 128: 192}
    arguments: dict[str, Any] = {
        "dtype": "bfloat16",
        "load_format": "dummy",
        "max_model_len": 1024,
        "max_num_seqs": 128,
        "max_num_batched_tokens": 4096,
        # For 620 tokens of each of 128 requests, which have some 300: nobody is put off for lack of
        # it. Of 139 GiB four engines take 4 * (16 for weights + 10 + 4 for graphs and such).
        "kv_cache_memory_bytes": 10 << 30,
        # Free as an engine starts beside others; where KV has its own size, it says no more.
        "gpu_memory_utilization": 0.05,
        "attention_backend": "FLASH_ATTN",
        # The same prompts come again and again here, which would flatter later visits.
        "enable_prefix_caching": False,
        "skip_tokenizer_init": True,
    }
    if dry_run:
        size = {"prompt_tokens": 60, "output_tokens": 6, "requests": 3}
        traces, policy, counted = PAIR, PAIR_POLICY, {1: 2, 2: 2}
        arguments = {
            "dtype": "float32",
            "load_format": "dummy",
            "max_model_len": 384,
            "max_num_seqs": 4,
            "gpu_memory_utilization": 0.2,
            "num_gpu_blocks_override": 128,
            "enforce_eager": True,
            "skip_tokenizer_init": True,
        }
    target, head = write_shapes(cache / ("tiny" if dry_run else "shapes"), dry_run)
    requests = {"traces": traces, "policy": policy, **size}
    return Plan(counted, requests, arguments, target, head)


def settings_of(engine: Engine, plan: Plan, dry_run: bool) -> dict[str, Any]:
    """What the engine's process is told."""
    config = engine.config
    if config is not None:
        config = {key: plan.head if value == HEAD else value for key, value in config.items()}
        if dry_run and "policy" in config:
            # On such models nothing is faster than no speculation: a guard would hold it off.
            config |= {"policy": PAIR_POLICY, "guard": False, "num_speculative_tokens": 4}
        if dry_run and "num_speculative_tokens_per_batch_size" in config:
            config["num_speculative_tokens_per_batch_size"] = [[1, 1, 3], [2, 2, 2], [3, 4, 1]]
    return {
        "target": plan.target,
        "config": config,
        "arguments": plan.arguments,
        "requests": plan.requests,
    }


class Served:
    """An engine's process."""

    def __init__(self, engine: Engine, settings: dict[str, Any], cache: Path, log: Any) -> None:
        self.engine, self.ready = engine, False
        path = cache / "engines" / f"{engine.name}.json"
        write_json(path, settings)
        self.process = _process([str(HERE / "served.py"), str(path)], cache, log)

    def tell(self, command: dict[str, Any]) -> None:
        """Give it something to do."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # its answer says so
            self.process.stdin.write((json.dumps(command) + "\n").encode())
            self.process.stdin.flush()

    def answer(self, until_s: float) -> dict[str, Any]:
        """What it answers; an error if it ends or says nothing until then."""
        answers = self.process.stdout
        assert answers is not None
        wait_s = max(0.0, until_s - time.monotonic())
        if not select.select([answers], [], [], wait_s)[0]:
            return {"error": f"it said nothing for {wait_s:.0f} s"}
        line = answers.readline()
        if not line:
            return {"error": f"its process ended with exit code {self.process.wait()}"}
        found: dict[str, Any] = json.loads(line)
        return found


class Measurement:
    """Engines side by side, and what they measure in turns."""

    def __init__(self, plan: Plan, lines: Lines, engines: Sequence[Served], dry_run: bool) -> None:
        self.plan, self.lines, self.engines, self.dry_run = plan, lines, engines, dry_run
        self.until_s = 0.0
        self.plain_ms: dict[int, float] = {}
        """By load, what the last steps without speculation took."""

    def begin(self, lossless: subprocess.Popen[bytes], start_s: float) -> None:
        """Hear of all engines, and let those that measure costs do so while all else is idle."""
        until_s = time.monotonic() + start_s
        waiting = [each for each in self.engines if self._hear(each, until_s)]
        with suppress(subprocess.TimeoutExpired):
            lossless.wait(start_s if self.dry_run else LOSSLESS_S)
        say(f"lossless: exit code {lossless.poll()} (None: it goes on for too long and is ended)")
        end(lossless)
        for each in waiting:
            each.tell({})
            self._hear(each, time.monotonic() + (start_s if self.dry_run else MEASURING_S))

    def _hear(self, served: Served, until_s: float) -> bool:
        """Whether an engine waits to be alone; one that says nothing until then is ended."""
        name, found = served.engine.name, served.answer(until_s)
        if "waits" in found:
            say(f"{name}: waits {found['waits']}")
            return True
        served.ready = "ready" in found
        if not served.ready:
            end(served.process)
        self.lines.add({"engine": name, **found.get("ready", found)})
        say(f"{name}: {found.get('error') or 'ready'}")
        return False

    def rounds(self, numbers: Sequence[int], until_s: float) -> None:
        """Warm up, and run as many rounds as fit."""
        self.until_s = until_s
        self._round(0)
        took_s = 0.0
        for number in numbers:
            left_s = until_s - time.monotonic() - AFTER_S
            if SPARE * took_s > left_s and not self.dry_run:
                say(f"round {number} would take {SPARE * took_s:.0f} s of {left_s:.0f}")
                break
            took_s = self._round(number)

    def _round(self, number: int) -> float:
        """Every method at every load, in requests of this round's own; seconds. 0 is for warmth."""
        began_s = time.monotonic()
        for load in self.plan.counted:
            for served, method in _turns(self.engines, number):
                self._measure(served, method, load, ROUND, number)
        took_s = time.monotonic() - began_s
        say(f"round {number}: {took_s:.0f} s")
        return took_s

    def after_rounds(self) -> None:
        """A profile of each engine; then each load where no draft is accepted, and with a bound.

        In this order: what adaspec learns of drafts that are all rejected would show in the others.
        """
        for load in self.plan.counted:
            for served in self.engines:
                self._measure(served, list(served.engine.methods)[-1], load, PROFILE)
        plain, ours = self.engines[0], self.engines[-1]
        for load in self.plan.counted:
            for served in (plain, ours):
                self._measure(served, served.engine.name, load, REJECTED)
        for load, plain_ms in self.plain_ms.items():
            self._measure(ours, ours.engine.name, load, BOUNDED, bound_ms=TIMES_PLAIN * plain_ms)

    def _measure(
        self, served: Served, method: str, load: int, stage: str, number: int = 1, **more: Any
    ) -> None:
        """Have a cell measured, and written down; those of a stage and round have one order."""
        if not served.ready or time.monotonic() > self.until_s:
            return
        counted = self.plan.counted[load] if stage != ROUND or number else load
        facts = {"stage": stage, "round": number, "load": load, "counted": counted, **more}
        served.tell({**facts, "length": served.engine.methods[method]})
        cell_s = self.until_s if self.dry_run else time.monotonic() + CELL_S
        found = served.answer(min(cell_s, self.until_s + 20.0))
        if "error" in found:
            served.ready = False
            end(served.process)
            self.lines.add({"engine": served.engine.name, "ended": found["error"], **facts})
            say(f"{served.engine.name}: {found['error']}")
            return
        cell = found["cell"]
        self.lines.add({"method": method, **facts, **cell})
        if method == self.engines[0].engine.name and stage == ROUND:
            self.plain_ms[load] = median(cell["steps"]["ms"])


def _turns(engines: Sequence[Served], number: int) -> list[tuple[Served, str]]:
    """Engine and method of each turn at a load; another method begins in each round."""
    turns = [(served, method) for served in engines for method in served.engine.methods]
    shift = number % len(turns)
    return turns[shift:] + turns[:shift]


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it started."""
    with suppress(ProcessLookupError):  # nobody of it is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def started(
    plan: Plan, cache: Path, out: Path, dry_run: bool
) -> Iterator[tuple[list[Served], subprocess.Popen[bytes]]]:
    """All engines and the lossless runs; they are ended with all that they started."""
    with ExitStack() as stack:
        log = stack.enter_context((out / "rounds.log").open("ab"))
        engines = []
        for each in ENGINES:
            served = Served(each, settings_of(each, plan, dry_run), cache, log)
            stack.callback(end, served.process)
            engines.append(served)
        models = str(cache if dry_run else CHECKOUT / MODELS)
        words = [str(HERE / "lossless.py"), str(out / "lossless.json"), "--cache", models]
        checked = {} if dry_run else {"VLLM_GPU_SYNC_CHECK": "error"}
        with (out / "lossless.log").open("ab") as own_log:
            lossless = _process(words, cache, own_log, **checked)
        stack.callback(end, lossless)
        yield engines, lossless


def _process(words: list[str], cache: Path, log: Any, **variables: str) -> subprocess.Popen[bytes]:
    """A Python process that is told things by its input, and answers by its output."""
    python_path = os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])
    kept = {"PYTHONPATH": python_path, "VLLM_CACHE_ROOT": str(cache / "vllm"), **variables}
    return subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env={**os.environ, **kept},
        cwd=CHECKOUT,
        start_new_session=True,
    )


def say(line: str) -> None:
    """Tell whoever waits."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def run(options: argparse.Namespace) -> bool:
    """Measure it all; whether every engine went well."""
    began_s, out = time.monotonic(), options.out.resolve()
    cache = (options.cache or out / "cache").resolve()
    plan = planned(cache, options.dry_run)
    engines = [asdict(engine) for engine in ENGINES]
    head = {"dry_run": options.dry_run, "engines": engines, "plan": asdict(plan)}
    lines = Lines(out / "rounds.jsonl", head)
    with started(plan, cache, out, options.dry_run) as (served, lossless):
        measurement = Measurement(plan, lines, served, options.dry_run)
        measurement.begin(lossless, options.max_s if options.dry_run else START_S)
        measurement.rounds(options.rounds, began_s + options.max_s)
        measurement.after_rounds()
        say("all is measured that was to be")
        return all(each.ready for each in served)


def main() -> int:
    """Run the command line; 1 where an engine failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of all results")
    parser.add_argument(
        "--rounds", type=int, nargs="+", default=[1, 2, 3, 4], help="their numbers, by which "
        "requests are drawn; as many as there is time for (%(default)s)"
    )  # fmt: skip
    parser.add_argument("--max-s", type=float, default=3600.0, help="seconds for all of it")
    parser.add_argument("--dry-run", action="store_true", help="tiny models, no GPU")
    parser.add_argument("--cache", type=Path, help="what need not come back")
    options = parser.parse_args()
    if not options.dry_run and not (CHECKOUT / LLAMA).is_dir():
        parser.error(f"{LLAMA}: import the recordings first: see README.md")
    # Whoever ends this ends the engines, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return 0 if run(options) else 1


if __name__ == "__main__":
    sys.exit(main())
