"""What adaspec costs a server in which it proposes nothing: step times side by side.

    python eval/measure_idle_cost.py --model TARGET --draft HEAD -o eval/reports/idle-cost

Four engines live in processes of their own and take turns, a round each, in an order that rotates:

    plain       no speculation
    plain-too   the same once more: how far two equal engines differ is the noise
    ngram-0     n-gram alone; every step indexes, looks up and decides, and proposes nothing
    head-0      every request holds the drafter and nothing is proposed: the keep-alive in each step
                (left out without --draft)

A round is --batch requests of --tokens tokens, started together; steps in which prompts are
processed do not count. Each round gives a system's median step time; what is reported is the median
over rounds of its ratio to the mean of both plain engines in the same round, with an interval from
resampled rounds. The keep-alive is timed where it runs, inside the engine's step; `left` is the
ratio when it is taken off: it should be at most 1.02. Where the interval lies on both sides of it,
or plain and plain-too differ by as much, the machine was too noisy to say.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

WARM_UP = 2
MAX_RATIO = 1.02
SEED = 0


class Holder:
    """A policy that never drafts, though all its requests hold the neural drafter."""

    name = "holder"

    def decide(self, batch: Any) -> Any:
        """No tokens."""
        from adaspec.policy.protocol import Proposal

        nothing = np.zeros(len(batch), np.int32)
        return Proposal(nothing, nothing.copy())


def config_of(system: str, draft: str | None) -> dict[str, Any] | None:
    """The speculative config of vLLM for a system."""
    if system.startswith("plain"):
        return None
    if system == "ngram-0":
        return {"method": "adaspec", "policy": "none", "guard": False}
    policy = f"python:{Path(__file__).stem}:Holder"
    config = {"method": "adaspec", "model": draft, "policy": policy, "guard": False}
    return {**config, "num_speculative_tokens": 8}


class Worker:
    """One engine in this process, which runs a round for every line on standard input."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        os.environ |= {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        }
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        from vllm import LLM

        from adaspec.vllm.plugin import register
        from adaspec.vllm.workarounds import shield_llvmlite

        register()
        shield_llvmlite()
        self.batch, self.tokens = arguments.batch, arguments.tokens
        self.llm = LLM(
            arguments.model,
            speculative_config=config_of(arguments.worker, arguments.draft),
            enforce_eager=arguments.eager,
            dtype="auto" if _has_gpu() else "float32",
            max_model_len=512,
            max_num_seqs=arguments.batch,
            gpu_memory_utilization=0.2 if _has_gpu() else 0.4,
            enable_prefix_caching=False,
            disable_log_stats=True,
            seed=SEED,
        )
        self.deciding = self.keeping = 0.0
        runner = self.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker
        runner = runner.worker.model_runner
        session = getattr(runner, "adaspec_session", None)
        if session is not None:
            self._watch(session, runner.drafter)
        self.rounds = 0

    def _watch(self, session: Any, drafter: Any) -> None:
        from adaspec.vllm.events import Observer
        from adaspec.vllm.v1.proposers import HeadMixin

        worker = self

        class DecisionClock(Observer):
            def proposed(self, proposed: Any) -> None:
                worker.deciding += proposed.decision_s

        session.observers.add(DecisionClock())
        if isinstance(drafter, HeadMixin):
            base = type(drafter).__bases__[1]
            propose_drafts = base.propose

            def propose(*args: Any, **kwargs: Any) -> Any:
                began = time.perf_counter()
                try:
                    return propose_drafts(*args, **kwargs)
                finally:
                    worker.keeping += time.perf_counter() - began

            base.propose = propose

    def round(self) -> dict[str, float]:
        """The median step time, and the mean time per step of deciding and of the keep-alive."""
        from vllm import SamplingParams

        engine = self.llm.llm_engine
        self.rounds += 1
        draw = np.random.default_rng([SEED, self.rounds])
        params = SamplingParams(temperature=0, max_tokens=self.tokens, ignore_eos=True)
        for row in range(self.batch):
            prompt = draw.integers(3, 97, 64).tolist()
            engine.add_request(f"{self.rounds}-{row}", {"prompt_token_ids": prompt}, params)
        steps: list[float] = []
        while engine.has_unfinished_requests():
            before = self.deciding, self.keeping
            began = time.perf_counter()
            outputs = engine.step()
            step_s = time.perf_counter() - began
            decoding = len(outputs) == self.batch and all(
                1 < len(out.outputs[0].token_ids) < self.tokens for out in outputs
            )
            if decoding:
                steps.append(step_s)
            else:
                self.deciding, self.keeping = before
        deciding, self.deciding = self.deciding, 0.0
        keeping, self.keeping = self.keeping, 0.0
        return {
            "step_s": float(np.median(steps)),
            "steps": len(steps),
            "decide_s": deciding / len(steps),
            "keep_alive_s": keeping / len(steps),
        }


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def work(arguments: argparse.Namespace) -> None:
    """Run rounds until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM's own output must not mix with the answers
    worker = Worker(arguments)
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        print(json.dumps(worker.round()), file=answers, flush=True)


class Remote:
    """A worker in another process, which this process starts and asks for rounds."""

    def __init__(self, arguments: argparse.Namespace, system: str) -> None:
        words = [sys.executable, __file__, "--worker", system, "--model", arguments.model]
        words += ["--batch", str(arguments.batch), "--tokens", str(arguments.tokens)]
        words += ["--eager"] if arguments.eager else []
        if arguments.draft:
            words += ["--draft", arguments.draft]
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"a worker ended with {self.process.wait()}: its error stands above")
        return line

    def round(self) -> dict[str, float]:
        """Run the worker's next round and return its figures."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        figures: dict[str, float] = json.loads(self._answer())
        return figures


def interval(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    """The interval with 95% of the medians over resampled rounds."""
    draw = np.random.default_rng(SEED)
    picked = draw.integers(0, len(values), (2000, len(values)))
    medians = np.median(values[picked], axis=1)
    return [round(float(quantile), 4) for quantile in np.quantile(medians, [0.025, 0.975])]


def summary(rounds: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """The ratios to no speculation per system, taken round by round."""
    steps = {
        name: np.array([figures["step_s"] for figures in rounds_of_system])
        for name, rounds_of_system in rounds.items()
    }
    plain = (steps["plain"] + steps["plain-too"]) / 2
    systems: dict[str, Any] = {}
    for name, rounds_of_system in rounds.items():
        keeping = np.array([figures["keep_alive_s"] for figures in rounds_of_system])
        deciding = np.array([figures["decide_s"] for figures in rounds_of_system])
        left = (steps[name] - keeping) / plain
        systems[name] = {
            "step_ms": round(1e3 * float(np.median(steps[name])), 4),
            "ratio": round(float(np.median(steps[name] / plain)), 4),
            "ratio_ci95": interval(steps[name] / plain),
            "keep_alive_share": round(float(np.median(keeping / plain)), 4),
            "left": round(float(np.median(left)), 4),
            "left_ci95": interval(left),
            "verdict": judge(*interval(left)),
            "decide_us": round(1e6 * float(np.median(deciding)), 1),
            "decide_share_of_step": round(float(np.median(deciding / steps[name])), 5),
        }
    return systems


def judge(low: float, high: float) -> str:
    """Say whether a ratio is at most `MAX_RATIO`, judged by its interval."""
    if high <= MAX_RATIO:
        return "within"
    return "beyond" if low > MAX_RATIO else "too noisy to say"


def text_of(report: dict[str, Any]) -> str:
    """The report as markdown."""
    lines = [
        f"# Idle cost: {report['batch']} requests at a time, {report['rounds']} rounds",
        "",
        "| system | step, ms | to no speculation | 95% | keep-alive | left | 95% | "
        f"at most {MAX_RATIO}? | deciding, us |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in report["systems"].items():
        lines.append(
            f"| {name} | {row['step_ms']:.2f} | {row['ratio']:.3f} | "
            f"{row['ratio_ci95'][0]:.3f} to {row['ratio_ci95'][1]:.3f} | "
            f"{row['keep_alive_share']:.3f} | {row['left']:.3f} | "
            f"{row['left_ci95'][0]:.3f} to {row['left_ci95'][1]:.3f} | "
            f"{row['verdict']} | {row['decide_us']:.0f} ({row['decide_share_of_step']:.2%}) |"
        )
    return "\n".join([*lines, "", f"{report['machine']}, vLLM {report['vllm']}.", ""])


def main() -> None:
    """Run all systems in turns and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--eager", action="store_true", help="without compilation or CUDA graphs")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tokens < 3:
        parser.error("--tokens: at least 3, or no step lies between the first token and the last")
    if arguments.worker:
        work(arguments)
        return
    names = ["plain", "ngram-0", "plain-too", *(["head-0"] if arguments.draft else [])]
    remotes = {name: Remote(arguments, name) for name in names}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for turn in range(-WARM_UP, arguments.rounds):
        for index in range(len(names)):
            name = names[(turn + index) % len(names)]
            figures = remotes[name].round()
            if turn >= 0:
                rounds[name].append(figures)
        print(f"round {turn + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    for remote in remotes.values():
        assert remote.process.stdin is not None
        remote.process.stdin.close()
    for remote in remotes.values():
        remote.process.wait()
    from importlib.metadata import packages_distributions, version

    report = {
        "schema": 1,
        "batch": arguments.batch,
        "tokens": arguments.tokens,
        "rounds": arguments.rounds,
        "eager": arguments.eager,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "vllm": version(packages_distributions()["vllm"][0]),
        "systems": summary(rounds),
        "command": shlex.join(["python", "eval/measure_idle_cost.py", *sys.argv[1:]]),
    }
    print(text_of(report))
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
