"""Compare methods in whole vLLM servers, by vLLM's own `vllm bench serve`.

    python eval/servers/compare.py --model M --prompts prompts.jsonl --concurrency 1,16 -o out \\
      --method 'suffix={"method": "suffix"}' --method 'adaspec={"method": "adaspec"}'

In every round each method, no speculation (`none`) among them, has a fresh `vllm serve` to which
`vllm bench serve` sends prompts that are the same for all methods and new in each load; from round
to round another method begins. README.md says what to mind.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import random
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.stats import t as student

sys.path.insert(0, str(Path(__file__).parents[1]))

from vllm_server import SERVED_NAME, VLLM, Server, ServerError, ended_by_signals, main_line

from adaspec.errors import AdaspecError
from adaspec.vllm.commands import read_prompts
from adaspec.vllm.configuration import hardware

NONE = "none"
WARM_UP = "warm-up"
LATENCIES = ("ttft", "tpot", "itl", "e2el")
FIGURES = tuple(f"{of}_{kind}_ms" for kind in LATENCIES for of in ("median", "p95", "p99"))
Results = dict[tuple[int, str, int], dict[str, Any]]
"""(load, method, round) -> what `vllm bench serve` says of it."""


class Comparison:
    """What is compared, and the folder in which results and the report lie."""

    def __init__(self, plan: dict[str, Any], prompts: Sequence[str], folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self._prompts = prompts

    def requests(self, load: int) -> int:
        """How many requests a load sends: in few waves, those that end together would count."""
        return max(int(self.plan["requests"]), 4 * load)

    def run(self) -> Results:
        """Visit every method in every round; what an earlier run has left is not measured again."""
        methods = list(self.plan["methods"])
        for number in range(self.plan["rounds"]):
            self._deal(number)
            turn = number % len(methods)
            for method in (*methods[turn:], *methods[:turn]):
                print(f"round {number + 1} of {self.plan['rounds']}: {method}", flush=True)
                self._visit(number, method)
        return {
            (load, method, number): json.loads(self._result(number, method, load).read_text())
            for number in range(self.plan["rounds"])
            for method in methods
            for load in self.plan["concurrency"]
        }

    def _visit(self, number: int, method: str) -> None:
        """All loads of one method in one round, in one server."""
        loads = self.plan["concurrency"]
        left = [load for load in loads if not self._result(number, method, load).exists()]
        if not left:
            return
        log = self.folder / "logs" / f"{number}-{method}.log"
        server = Server(self.plan["model"], self.plan["engine"], self.plan["methods"][method], log)
        try:
            server.wait()
            self._bench(server, number, method, WARM_UP, max(left))
            for load in left:
                self._bench(server, number, method, load, load)
        except ServerError as error:
            raise ServerError(f"{method}: {error}") from error
        finally:
            server.stop()

    def _bench(
        self, server: Server, number: int, method: str, load: int | str, concurrency: int
    ) -> None:
        """Run `vllm bench serve`; its result is kept once every request was answered."""
        result = self._result(number, method, load)
        count = concurrency if load == WARM_UP else self.requests(concurrency)
        command = [*VLLM, "bench", "serve", "--base-url", server.address]
        command += ["--model", SERVED_NAME, "--tokenizer", self.plan["model"]]
        command += ["--dataset-name", "custom", "--dataset-path", str(self._dealt(number, load))]
        command += ["--disable-shuffle", "--skip-chat-template", "--num-prompts", str(count)]
        command += ["--custom-output-len", str(self.plan["output_tokens"])]
        command += [
            "--max-concurrency",
            str(concurrency),
            "--temperature",
            str(self.plan["temperature"]),
        ]
        # Prompts hold the special tokens of their template already.
        command += ["--extra-body", '{"add_special_tokens": false}']
        command += ["--percentile-metrics", ",".join(LATENCIES), "--metric-percentiles", "95,99"]
        command += ["--save-result", "--result-dir", str(result.parent), "--disable-tqdm"]
        unread = result.with_suffix(".unread.json")
        command += ["--result-filename", unread.name]
        log = self.folder / "logs" / f"{number}-{method}-{load}.log"
        with log.open("w") as file:
            done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            raise ServerError(f"vllm bench serve failed: {main_line(log)} (all of it: {log})")
        said = json.loads(unread.read_text())
        if said["completed"] != count:
            raise ServerError(f"only {said['completed']} of {count} requests were answered: {log}")
        said["commands"] = [
            shlex.join(["python", *words[1:]]) for words in (server.command, command)
        ]
        unread.write_text(json.dumps(said))
        unread.replace(result)

    def _deal(self, number: int) -> None:
        """Write the prompts of each load of a round; none comes twice, as servers remember."""
        draw = random.Random(f"{self.plan['seed']}/{number}")
        order = draw.sample(self._prompts, len(self._prompts))
        loads = self.plan["concurrency"]
        counts = {WARM_UP: max(loads), **{load: self.requests(load) for load in loads}}
        if len(order) < sum(counts.values()):
            raise ServerError(
                f"a round sends {sum(counts.values())} prompts, and there are {len(order)}: give "
                "more --prompts, fewer --requests or fewer loads"
            )
        for load, count in counts.items():
            dealt, order = order[:count], order[count:]
            lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in dealt]
            self._dealt(number, load).write_text("".join(lines), encoding="utf-8")

    def _dealt(self, number: int, load: int | str) -> Path:
        return self.folder / "prompts" / f"{number}-{load}.jsonl"

    def _result(self, number: int, method: str, load: int | str) -> Path:
        return self.folder / "results" / f"{number}-{method}-{load}.json"


def row_of(plan: dict[str, Any], results: Results, load: int, method: str) -> dict[str, Any]:
    """The figures of one load and method; ratios are over `none` of the same round."""
    rounds = range(plan["rounds"])
    found = [results[load, method, number] for number in rounds]
    speeds = [each["output_throughput"] for each in found]
    none = [results[load, NONE, number]["output_throughput"] for number in rounds]
    ratio, interval = paired_ratio(speeds, none)
    drafted = sum(each.get("spec_decode_draft_tokens", 0) for each in found)
    accepted = sum(each.get("spec_decode_accepted_tokens", 0) for each in found)
    drafts = sum(each.get("spec_decode_num_drafts", 0) for each in found)
    return {
        "concurrency": load,
        "method": method,
        "rounds": len(found),
        "requests": sum(each["completed"] for each in found),
        "output_tokens_per_s": median(speeds),
        "output_tokens_per_s_by_round": speeds,
        "over_none": ratio,
        "over_none_ci95": interval,
        "acceptance_rate": accepted / drafted if drafted else None,
        "acceptance_length": 1 + accepted / drafts if drafts else None,
        **{name: median(each[name] for each in found) for name in FIGURES},
    }


def paired_ratio(
    ours: Sequence[float], theirs: Sequence[float]
) -> tuple[float, list[float] | None]:
    """The geometric mean of the rounds' ratios, and its 95% interval.

    The interval is Student's, of the logarithms; a single round has none.
    """
    logs = np.log(np.array(ours) / np.array(theirs))
    mean, count = float(logs.mean()), len(logs)
    if count < 2:
        return math.exp(mean), None
    half = float(student.ppf(0.975, count - 1) * logs.std(ddof=1) / math.sqrt(count))
    return math.exp(mean), [math.exp(mean - half), math.exp(mean + half)]


def texts_of(files: Sequence[Path], model: str) -> list[str]:
    """Every prompt as the text that the model reads, its chat template applied."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = (prompt for file in files for prompt in read_prompts(file))
    return list(dict.fromkeys(tokenizer.decode(prompt.tokens(tokenizer)) for prompt in prompts))


def compare(plan: dict[str, Any], files: Sequence[Path], folder: Path) -> list[dict[str, Any]]:
    """Run a comparison, or what is missing of it, and write its report; the report's rows."""
    for name in ("prompts", "results", "logs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    planned = folder / "plan.json"
    if planned.exists() and json.loads(planned.read_text()) != plan:
        raise ServerError(f"{folder} holds another comparison: name another folder with -o")
    planned.write_text(json.dumps(plan, indent=1) + "\n")
    comparison = Comparison(plan, texts_of(files, plan["model"]), folder)
    with ended_by_signals():
        results = comparison.run()
    loads, methods = plan["concurrency"], plan["methods"]
    rows = [row_of(plan, results, load, method) for load in loads for method in methods]
    report = {
        "schema": 1,
        "kind": "servers",
        "command": shlex.join(["python", "eval/servers/compare.py", *sys.argv[1:]]),
        "vllm": version("vllm"),
        "hardware": hardware(),
        **plan,
        "rows": rows,
        "commands": {method: results[loads[0], method, 0]["commands"] for method in methods},
    }
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows."""
    for row in rows:
        low, high = row["over_none_ci95"] or (math.nan, math.nan)
        print(
            f"{row['concurrency']:>4} at once  {row['method']:20} "
            f"{row['output_tokens_per_s']:>8.1f} tok/s  "
            f"{row['over_none']:.2f}x none ({low:.2f} .. {high:.2f})"
        )


def method_of(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the speculative config of a --method."""
    name, _, config = text.partition("=")
    parsed = json.loads(config)
    if not name.replace("-", "").isalnum() or name == NONE or not isinstance(parsed, dict):
        raise ValueError(text)
    return name, parsed


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", required=True, help="the target, as vLLM takes it")
    add("--prompts", type=Path, required=True, action="append", help="JSON lines; may be repeated")
    about_methods = "NAME=JSON of a --speculative-config; may be repeated, `none` runs anyway"
    add("--method", type=method_of, required=True, action="append", help=about_methods)
    add("--concurrency", default="1,4,16", help="requests at once")
    add("--requests", type=int, default=16, help="of a load; four per slot at least")
    add("--rounds", type=int, default=4)
    add("--output-tokens", type=int, default=128, help="of a request, at most")
    add("--temperature", type=float, default=0.0, help="at 10 or so, no draft is ever accepted")
    add("--seed", type=int, default=0)
    add("--engine", type=json.loads, default={}, help="JSON of vLLM's arguments")
    add("-o", "--out", type=Path, required=True, help="a folder")
    asked = parser.parse_args()
    if importlib.util.find_spec("vllm") is None or importlib.util.find_spec("pandas") is None:
        parser.error("`vllm bench serve` needs vLLM and pandas: pip install 'vllm[bench]'")
    plan = {
        "model": asked.model,
        "engine": asked.engine,
        "methods": {NONE: None, **dict(asked.method)},
        "concurrency": [int(load) for load in asked.concurrency.split(",")],
        "requests": asked.requests,
        "output_tokens": asked.output_tokens,
        "temperature": asked.temperature,
        "rounds": asked.rounds,
        "seed": asked.seed,
    }
    try:
        show(compare(plan, asked.prompts, asked.out))
    except (ServerError, AdaspecError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; no server is left, and the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
