"""Tokens per second of several methods, in turns, by engines that run side by side on one GPU.

    python eval/gpu/rounds.py --out results --llama eval/gpu/carry/llama --max-s 500
    python eval/gpu/rounds.py --out dry --dry-run

The engines of a group start at once, each in a process of its own, and stay until the group ends;
whoever is not told to measure does nothing. Every load is run once for warmth, then in rounds in
which the methods take turns. What is measured is written at once; a round that would not fit into
the time is not begun. See README.md beside this file.
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
from typing import Any

from engines import CHECKOUT, write_shapes
from results import Cells, write_json

HERE = Path(__file__).resolve().parent
LLAMA_POLICY, PAIR_POLICY = "llama-3.1-8b-instruct-h100", "reference-pair-cpu"
PAIR = CHECKOUT / "eval" / "traces" / "reference-pair"
LLAMA = HERE / "carry" / "llama"
COST = "h100-llama-3.1-8b"
START_S = 120.0
"""No group is begun with less time than this: its engines start in a minute or two."""
SPARE = 1.15
"""How much longer than the one before a round may take."""
HEAD = "HEAD"
"""Stands for the folder of the head's config."""


@dataclass(frozen=True)
class Engine:
    """One engine: what vLLM is told, and which methods are measured with it."""

    name: str
    config: dict[str, Any] | None = None
    """vLLM's speculative config."""
    workloads: tuple[str, ...] = ("llama",)
    lengths: dict[str, int | None] = field(default_factory=dict)
    """The methods, and the length of vLLM's drafts in each; the engine's name if there are none."""
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def methods(self) -> dict[str, int | None]:
        """The methods with their lengths."""
        return self.lengths or {self.name: None}


def _eagle(**more: Any) -> dict[str, Any]:
    return {"method": "eagle3", "model": HEAD, **more}


def _adaspec(policy: str) -> dict[str, Any]:
    return {
        "method": "adaspec",
        "model": HEAD,
        "draft_method": "eagle3",
        "policy": policy,
        "cost": COST,
    }


_LARGE = {"compilation_config": {"max_cudagraph_capture_size": 1024}}
GROUPS = {
    "A": (
        Engine("none"),
        Engine("eagle3-3", _eagle(num_speculative_tokens=3)),
        Engine("adaspec", _adaspec(LLAMA_POLICY)),
    ),
    "B": (
        Engine(
            "eagle3-1-2",
            _eagle(
                num_speculative_tokens=2,
                # A graph is captured for each length that is named; which one runs, a cell says.
                num_speculative_tokens_per_batch_size=[[1, 64, 2], [65, 128, 1]],
            ),
            ("llama", "pair"),
            {"eagle3-1": 1, "eagle3-2": 2},
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
            "adaptive",
            _eagle(num_speculative_tokens=4, enable_adaptive_verification=True),
            ("pair",),
        ),
    ),
    "C": (
        Engine("none-1024", None, ("llama", "pair"), arguments=_LARGE),
        Engine("adaspec-1024", _adaspec(LLAMA_POLICY), arguments=_LARGE),
        Engine("adaspec-pair", _adaspec(PAIR_POLICY), ("pair",), arguments=_LARGE),
    ),
}
"""What runs side by side. A makes the table; three engines of these shapes fit at once."""


@dataclass(frozen=True)
class Plan:
    """How much is measured, and of what."""

    loads: Sequence[int]
    least: int
    passes: int
    warm: tuple[int, int]
    """`least` and `passes` of the run for warmth."""
    rounds: int
    workloads: dict[str, dict[str, Any]]
    arguments: dict[str, Any]
    """What vLLM is told for every engine."""
    target: str
    head: str


def planned(cache: Path, llama: Path, rounds: int, dry_run: bool) -> Plan:
    """The plan for a GPU, or that of a dry run on a CPU."""
    size: dict[str, Any] = {"prompt_tokens": 512, "output_tokens": 160, "requests": 200}
    arguments: dict[str, Any] = {
        "dtype": "bfloat16",
        "load_format": "dummy",
        "max_model_len": 1024,
        "max_num_seqs": 128,
        "max_num_batched_tokens": 4096,
        # Of 78 GiB an engine takes 16 for weights, these, and some three for graphs and the like.
        "kv_cache_memory_bytes": 5 << 30,
        "gpu_memory_utilization": 0.2,
        "attention_backend": "FLASH_ATTN",
        # The same prompts come again and again here, which would flatter later visits.
        "enable_prefix_caching": False,
        "skip_tokenizer_init": True,
    }
    if dry_run:
        size = {"prompt_tokens": 60, "output_tokens": 6, "requests": 3}
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
        llama = PAIR
    pair = {"traces": str(PAIR), "policy": PAIR_POLICY, **size}
    policy = PAIR_POLICY if dry_run else LLAMA_POLICY
    counts = {**pair, "traces": str(llama), "policy": policy, "counts_alone": True}
    target, head = write_shapes(cache / ("tiny" if dry_run else "shapes"), dry_run)
    return Plan(
        loads=(1, 2) if dry_run else (1, 8, 32, 128),
        least=2 if dry_run else 16,
        passes=1 if dry_run else 4,
        warm=(1, 1) if dry_run else (4, 1),
        rounds=rounds,
        workloads={"llama": counts, "pair": pair},
        arguments=arguments,
        target=target,
        head=head,
    )


def settings_of(engine: Engine, plan: Plan, dry_run: bool) -> dict[str, Any]:
    """What the engine's process is told."""
    config, arguments = engine.config, plan.arguments | engine.arguments
    if config is not None:
        config = {key: plan.head if value == HEAD else value for key, value in config.items()}
    if dry_run:
        arguments.pop("compilation_config", None)
        config = _dry(config, plan.arguments["max_num_seqs"])
    return {
        "target": plan.target,
        "config": config,
        "arguments": arguments,
        "workloads": {name: plan.workloads[name] for name in engine.workloads},
    }


def _dry(config: dict[str, Any] | None, most: int) -> dict[str, Any] | None:
    """A config for tiny models, whose vocabulary is the pair's."""
    if config is None:
        return None
    config = dict(config)
    if "policy" in config:
        # On such models nothing is faster than no speculation: a guard would hold it off.
        config |= {"policy": PAIR_POLICY, "guard": False, "num_speculative_tokens": 4}
    if "num_speculative_tokens_per_batch_size" in config:
        config["num_speculative_tokens_per_batch_size"] = [[1, 1, 2], [2, most, 1]]
    return config


class Served:
    """An engine's process."""

    def __init__(self, engine: Engine, settings: dict[str, Any], cache: Path, log: Any) -> None:
        self.engine, self.ready = engine, False
        self.outputs: dict[str, list[int]] = {}
        """By workload, how many tokens each request emits."""
        path = cache / "engines" / f"{engine.name}.json"
        write_json(path, settings)
        python_path = os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])
        kept = {"PYTHONPATH": python_path, "VLLM_CACHE_ROOT": str(cache / "vllm")}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "served.py"), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **kept},
            cwd=CHECKOUT,
            start_new_session=True,
        )

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

    def end(self) -> None:
        """End it with all that it started."""
        with suppress(ProcessLookupError):  # nobody of it is left
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Group:
    """Engines side by side, and what they measure in turns."""

    def __init__(self, name: str, plan: Plan, cells: Cells, until_s: float) -> None:
        self.name, self.plan, self.cells, self.until_s = name, plan, cells, until_s
        self.rates: dict[tuple[str, str, int], float] = {}
        """Tokens per second by method, workload and load, as last measured."""

    def measure(self, engines: Sequence[Served]) -> bool:
        """Start, warm up, and run as many rounds as fit; whether all of it went well."""
        for each in engines:
            self._hear(each)
        self._round(engines, 0, self.plan.warm)
        begun = 0
        for number in range(1, self.plan.rounds + 1):
            wanted_s = SPARE * self._expected_s(engines)
            left_s = self.until_s - time.monotonic()
            if wanted_s > left_s:
                say(f"{self.name}: round {number} would take {wanted_s:.0f} s of {left_s:.0f}")
                break
            self._round(engines, number, (self.plan.least, self.plan.passes))
            begun += 1
        self.cells.add("rounds", {"begun": begun, "of": self.plan.rounds})
        return all(each.ready for each in engines)

    def _hear(self, served: Served) -> None:
        name, found = served.engine.name, served.answer(self.until_s)
        served.ready, served.outputs = "ready" in found, found.get("outputs", {})
        self.cells.add(f"engine {name}", found.get("ready", found))
        say(f"{self.name}: {name}: {found.get('error') or 'ready'}")

    def _round(self, engines: Sequence[Served], number: int, size: tuple[int, int]) -> None:
        """Every method at every load; round 0 is for warmth."""
        began_s = time.monotonic()
        for load in self.plan.loads:
            for served, method, workload in _turns(engines, number):
                key = f"{number} {workload} {load} {method}"
                if (number and key in self.cells) or not served.ready:
                    continue
                asked = {"workload": workload, "load": load, "least": size[0], "passes": size[1]}
                # The same requests in every round, so that what rounds differ by is the machine.
                asked["seed"] = min(number, 1)
                served.tell({**asked, "length": served.engine.methods[method]})
                found = served.answer(self.until_s + 30.0)
                if "error" in found:
                    served.ready = False
                    self.cells.add(f"engine {served.engine.name} ended", found)
                    say(f"{self.name}: {served.engine.name}: {found['error']}")
                    continue
                facts = {"group": self.name, "round": number, "method": method}
                self.cells.add(key, {**facts, **asked, **found["cell"]})
                self.rates[method, workload, load] = found["cell"]["tokens_per_s"]
        say(f"{self.name}: round {number}: {time.monotonic() - began_s:.0f} s")

    def _expected_s(self, engines: Sequence[Served]) -> float:
        """How long a round will take, by the rates so far."""
        found = 0.0
        for load in self.plan.loads:
            requests = max(self.plan.least, self.plan.passes * load) + load / 2
            for served, method, workload in _turns(engines, 0):
                rate = self.rates.get((method, workload, load))
                if rate and served.ready:
                    outputs = served.outputs[workload]
                    found += requests * sum(outputs) / len(outputs) / rate
        return found


def _turns(engines: Sequence[Served], number: int) -> list[tuple[Served, str, str]]:
    """Engine, method and workload of each turn at a load; another method begins in each round."""
    turns = [
        (served, method, workload)
        for served in engines
        for method in served.engine.methods
        for workload in served.engine.workloads
    ]
    shift = number % len(turns)
    return turns[shift:] + turns[:shift]


@contextmanager
def started(
    group: Sequence[Engine], plan: Plan, cache: Path, log: Path, dry_run: bool
) -> Iterator[list[Served]]:
    """The engines of a group; they are ended with all that they started."""
    with ExitStack() as stack:
        file = stack.enter_context(log.open("ab"))
        engines = []
        for engine in group:
            engines.append(Served(engine, settings_of(engine, plan, dry_run), cache, file))
            stack.callback(engines[-1].end)
        yield engines


def say(line: str) -> None:
    """Tell whoever waits."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def run(options: argparse.Namespace) -> bool:
    """Measure the groups, one after the other; whether every engine went well."""
    began_s, out = time.monotonic(), options.out.resolve()
    cache = (options.cache or out / "cache").resolve()
    plan = planned(cache, options.llama.resolve(), options.rounds, options.dry_run)
    well = True
    for name in options.groups.split(","):
        until_s = began_s + options.max_s
        if until_s - time.monotonic() < (0 if options.dry_run else START_S):
            say(f"{name}: is not begun: {until_s - time.monotonic():.0f} s are left")
            break
        engines = [asdict(engine) for engine in GROUPS[name]]
        settings = {"dry_run": options.dry_run, "engines": engines, "plan": asdict(plan)}
        cells = Cells(out / f"rounds-{name}.jsonl", settings)
        if {"begun": plan.rounds, "of": plan.rounds} in cells.values():
            say(f"{name}: is measured already")
            continue
        log = out / f"rounds-{name}.log"
        with started(GROUPS[name], plan, cache, log, options.dry_run) as served:
            well &= Group(name, plan, cells, until_s).measure(served)
    return well


def main() -> int:
    """Run the command line; 1 where an engine failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of all results")
    parser.add_argument("--groups", default="A", help=f"of {', '.join(GROUPS)} (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="beside one for warmth (%(default)s)")
    parser.add_argument("--max-s", type=float, default=3600.0, help="seconds for all of it")
    parser.add_argument("--llama", type=Path, default=LLAMA, help="imported recordings of Llama")
    parser.add_argument("--dry-run", action="store_true", help="tiny models, no GPU")
    parser.add_argument("--cache", type=Path, help="what need not come back")
    options = parser.parse_args()
    unknown = set(options.groups.split(",")) - GROUPS.keys()
    if unknown:
        parser.error(f"--groups: no group '{min(unknown)}' (has: {', '.join(GROUPS)})")
    if not options.dry_run and not options.llama.is_dir():
        parser.error(f"--llama {options.llama}: import its recordings first: see README.md")
    # Whoever ends this ends the engines, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return 0 if run(options) else 1


if __name__ == "__main__":
    sys.exit(main())
