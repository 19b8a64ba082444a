"""What vLLM's model runner V2 verifies and accepts per step, held against the replay of it.

    python eval/v2_rounds.py eval/traces/reference-pair --target TARGET \\
        --draft training/reference_pair/eagle3 --policy reference-pair-cpu \\
        --cost training/reference-pair-cpu/cost.json -o eval/reports/v2-rounds

asks requests that the policy never saw of V2 engines with async scheduling, on a CPU, with vLLM's
kernels in Triton's interpreter: without speculation, with the head alone, with vLLM's n-gram, and
with adaspec. What such engines take says nothing; what they draft, verify and emit is what they
would on a GPU. Replays of the same requests say what each should.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "tests" / "engine" / each) for each in ("v2", "")]

import interpreter  # noqa: E402, F401
from live_engine import Engine  # noqa: E402

from adaspec.cost.engine import ASYNC  # noqa: E402
from adaspec.cost.load import load_cost  # noqa: E402
from adaspec.cost.model import CostModel  # noqa: E402
from adaspec.errors import AdaspecError  # noqa: E402
from adaspec.evaluate.options import CAP  # noqa: E402
from adaspec.evaluate.selection import Wanted, select  # noqa: E402
from adaspec.policy.learned import LearnedPolicy, load_policy  # noqa: E402
from adaspec.policy.spec import parse_policy  # noqa: E402
from adaspec.replay.closed_loop import Result  # noqa: E402
from adaspec.replay.orders import draw_orders  # noqa: E402
from adaspec.replay.player import Player  # noqa: E402
from adaspec.replay.recording import build_recording  # noqa: E402
from adaspec.trace.schema import Request  # noqa: E402

UNFINISHED = "rows.partial.json"
"""The rows so far, until the report is written."""
ENGINE = {
    "async_scheduling": True,
    "max_model_len": 1024,
    "max_num_batched_tokens": 4096,
}


@dataclass
class Counts:
    """What came up while as many requests ran as should."""

    row_steps: int = 0
    verified: int = 0
    emitted: int = 0
    same: int = 0
    """Requests that ended with the recorded tokens."""
    ended: int = 0

    def per_step(self) -> dict[str, float]:
        """Tokens per request and step."""
        return {
            "verified": self.verified / self.row_steps,
            "accepted": self.emitted / self.row_steps - 1,
            "emitted": self.emitted / self.row_steps,
        }


class Verified:
    """An observer that adds up what adaspec's drafts came to."""

    def __init__(self) -> None:
        self.tokens = 0

    def verified(self, event: Any) -> None:
        """Of a step's drafts, those that the target verified."""
        self.tokens += int(event.drafted.sum())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_: None


def run(engine: Any, asked: list[Request], load: int, verified: Callable[[], int]) -> Counts:
    """Ask the requests, so many at once, until fewer than that are left."""
    from vllm import SamplingParams

    core, counts, waiting, texts = engine.llm.llm_engine, Counts(), enumerate(asked), {}
    before = verified()

    def ask() -> bool:
        at, each = next(waiting, (0, None))
        if each is None:
            return False
        name = f"{load}-{at}"  # an order may hold a request more than once
        params = SamplingParams(
            temperature=0, max_tokens=len(each.output_tokens), ignore_eos=True, detokenize=False
        )
        prompt = {"prompt_token_ids": each.prompt_tokens.tolist()}
        core.add_request(name, prompt, params)
        texts[name] = each.output_tokens.tolist()
        return True

    known: dict[str, int] = {}
    for _ in range(load):
        ask()
    going_on = True
    while going_on:
        for out in core.step():
            name, tokens = out.request_id, list(out.outputs[0].token_ids)
            # The first tokens are emitted by the step that ends the prompt, which verifies nothing.
            if name in known:
                counts.row_steps += 1
                counts.emitted += len(tokens) - known[name]
            known[name] = len(tokens)
            if out.finished:
                counts.ended += 1
                counts.same += tokens == texts[name]
                going_on &= ask()
    counts.verified = verified() - before
    core.abort_request([name for name in known if known[name] < len(texts[name])])
    while core.has_unfinished_requests():
        core.step()
    return counts


def methods(options: argparse.Namespace, policy: LearnedPolicy) -> Iterator[tuple[str, Any, Any]]:
    """Each method's name, its speculative config, and who plays it in the replay."""
    none, head = parse_policy("none"), parse_policy(f"fixed:neural:{options.head_tokens}")
    copied, longest = options.ngram_tokens, options.ngram_longest
    copying = parse_policy(f"fixed:ngram-vllm:{copied}:2:{longest}")
    draft, cap = str(options.draft), CAP
    yield "none", None, none
    yield (
        f"EAGLE-3, {options.head_tokens}",
        {"method": "eagle3", "model": draft, "num_speculative_tokens": options.head_tokens},
        head,
    )
    yield (
        f"n-gram, {copied}",
        {
            "method": "ngram_gpu",
            "num_speculative_tokens": copied,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": longest,
        },
        copying,
    )
    yield (
        "adaspec",
        {
            "method": "adaspec",
            "model": draft,
            "policy": options.policy,
            "guard": False,
            "cost": str(options.cost),
            "num_speculative_tokens": cap,
        },
        policy,
    )


def measured(
    config: Any, asked: list[Request], loads: list[int], target: Path
) -> dict[int, Counts]:
    """What one engine does at each load; adaspec begins each without what it learned before."""
    from adaspec.vllm.v2.attachment import serve_by

    engine = Engine(target.parent, config, target.name, max_num_seqs=max(loads), **ENGINE)
    is_ours, observer, found = hasattr(engine.runner, "adaspec_session"), Verified(), {}

    def verified() -> int:
        if is_ours:
            return observer.tokens
        return sum(drafted for steps in engine.judged.values() for drafted, _ in steps)

    for load in loads:
        if is_ours:
            worker = serve_by(engine.runner, load_policy(config["policy"]))
            worker.observers.add(observer)
        found[load] = run(engine, asked, load, verified)
    engine.close()
    return found


def replayed(result: Result) -> dict[str, float]:
    """A replay's tokens per request and step."""
    return {
        "verified": result.drafted / result.row_steps,
        "accepted": result.accepted / result.row_steps,
        "emitted": result.tokens / result.row_steps,
    }


def report_of(options: argparse.Namespace) -> dict[str, Any]:
    """Run every method at every load, and replay it."""
    policy, cost = load_policy(options.policy), load_cost(str(options.cost))
    assert policy.manifest is not None
    seen = frozenset(policy.manifest.training_requests)
    selection = select([options.traces], Wanted(seen=seen))
    recording = build_recording(selection.requests, selection.neural_cap)
    order = draw_orders(recording, None, 1, options.seed, 1)[0][: options.requests]
    asked = [selection.requests[at] for at in order]
    command = shlex.join(["python", "eval/v2_rounds.py", *sys.argv[1:]])
    unfinished = options.out / UNFINISHED
    rows = known_rows(unfinished, command)
    for name, config, contender in methods(options, policy):
        missing = [
            load
            for load in options.loads
            if not any(row["method"] == name and row["load"] == load for row in rows)
        ]
        counts = measured(config, asked, missing, options.target) if missing else {}
        for load, each in counts.items():
            said = replayed(played(recording, cost, contender, order, load))
            rows.append(
                {
                    "method": name,
                    "load": load,
                    "row_steps": each.row_steps,
                    "as_recorded": [each.same, each.ended],
                    "engine": each.per_step(),
                    "replay": said,
                }
            )
            options.out.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(json.dumps({"command": command, "rows": rows}) + "\n")
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return {
        "schema": 1,
        "policy": policy.name,
        "requests": len(asked),
        "seed": options.seed,
        "longest_draft": CAP,
        "rows": rows,
        "command": command,
    }


def known_rows(path: Path, command: str) -> list[dict[str, Any]]:
    """The rows of a run of the very command that was cut short, which are not run again."""
    document = json.loads(path.read_text()) if path.exists() else {}
    rows: list[dict[str, Any]] = document.get("rows", [])
    return rows if document.get("command") == command else []


def played(recording: Any, cost: CostModel, contender: Any, order: Any, load: int) -> Result:
    """The replay of these requests, in an async engine."""
    player = Player(recording, cost, CAP, engine=ASYNC)
    return player.play(contender, order, load)


def table(document: dict[str, Any]) -> str:
    """The report's table: the engine's tokens per request and step, the replay's beside them."""
    heads = ["at once", "method", "steps of a request", "as recorded"]
    heads += ["verified", "replay", "accepted", "replay", "emitted", "replay"]
    lines = [heads, [":--" if head == "method" else "--:" for head in heads]]
    for row in sorted(document["rows"], key=lambda each: int(each["load"])):
        line = [str(row["load"]), row["method"], f"{row['row_steps']:,}"]
        line.append("{} of {}".format(*row["as_recorded"]))
        for what in ("verified", "accepted", "emitted"):
            here, there = row["engine"][what], row["replay"][what]
            apart = f" ({here / there - 1:+.1%})" if there else ""
            line += [f"{here:.3f}{apart}", f"{there:.3f}"]
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def main() -> None:
    """Run, replay and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("--target", type=Path, required=True, help="the model's folder")
    parser.add_argument("--draft", type=Path, required=True, help="the EAGLE-3 head's folder")
    parser.add_argument("--policy", required=True, help="a folder, or a shipped one's name")
    parser.add_argument("--cost", required=True)
    parser.add_argument("--loads", type=_numbers, default=[1, 4], help="requests at once")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--head-tokens", type=int, default=3)
    parser.add_argument("--ngram-tokens", type=int, default=5)
    parser.add_argument("--ngram-longest", type=int, default=5)
    parser.add_argument("-o", "--out", type=Path, required=True, help="a folder")
    options = parser.parse_args()
    if max(options.loads) > options.requests:
        parser.error("--requests: fewer than run at once")
    try:
        document = report_of(options)
    except AdaspecError as error:
        sys.exit(f"v2_rounds: {error}")
    text = (
        f"Tokens per request and step of vLLM's model runner V2 with async scheduling, "
        f"{document['requests']} requests that the policy never saw, drafts of up to "
        f"{document['longest_draft']}; in brackets how far the engine is from the replay.\n\n"
        f"{table(document)}"
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "report.json").write_text(json.dumps(document, indent=1) + "\n")
    (options.out / UNFINISHED).unlink(missing_ok=True)
    print(text)


def _numbers(words: str) -> list[int]:
    return [int(word) for word in words.split(",")]


if __name__ == "__main__":
    main()
