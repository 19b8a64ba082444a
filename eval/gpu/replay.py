"""Replay what `throughput` ran on a GPU, under the costs that were measured there.

    python eval/gpu/replay.py results --policy work/reference-pair-h100

The same requests in the same order, by the evaluator of `adaspec eval --engine async`. Writes
replay.json, and the report anew, which then says how far both are apart.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from plan import TRACES
from report import write_report
from results import SCHEMA, cells_in, read_json, write_json
from throughput import Asked, asked_for, digest, draw

from adaspec.cost.engine import ASYNC
from adaspec.cost.load import load_cost
from adaspec.policy.learned import load_policy
from adaspec.replay.contender import parse_contender
from adaspec.replay.player import Player
from adaspec.replay.recording import build_recording
from adaspec.trace.schema import Request
from adaspec.vllm.v2.support import MOST_SCHEDULED

CONTENDERS = {
    "none": "none",
    "eagle3-1": "fixed:neural:1",
    "eagle3-2": "fixed:neural:2",
    "eagle3-3": "fixed:neural:3",
}
"""What methods are to the evaluator; adaspec is the policy."""
OURS = "adaspec-v2"


def replays(folder: Path, policy: str) -> Iterator[dict[str, Any]]:
    """What each method does at each load, there and in a replay."""
    plan = read_json(folder / "plan.json")
    assert plan is not None
    cost = load_cost(folder / "costs" / "v2.json")
    cap = load_policy(policy).neural_cap
    for name, stage in plan["stages"].items():
        settings = stage["settings"]
        cells = cells_in(folder / "cells" / f"{name}.jsonl", settings)
        method = settings.get("method")
        if stage["part"] != "throughput" or method not in {*CONTENDERS, OURS} or not cells:
            continue
        asked = asked_for(settings | {"policy": policy, "traces": str(TRACES)}, folder)
        recording = build_recording([_counted(each.recorded) for each in asked], cap)
        player = Player(recording.with_prefill(cost.under(ASYNC)), cost, MOST_SCHEDULED, ASYNC)
        contender = parse_contender(policy if method == OURS else CONTENDERS[method])
        for cell in cells:
            if not cell["forced"]:
                continue
            load = cell["load"]
            _check_same(asked, cell["outputs"])
            order = draw(len(asked), load, settings["seed"], settings["most_requests"])
            replayed = player.play(contender, np.array(order, np.int32), load)
            yield {
                "stage": name,
                "method": method,
                "load": load,
                "tokens_per_s": cell["tokens_per_s"],
                "tokens_per_row": cell["tokens_per_row"],
                "replayed_tokens_per_s": replayed.tokens_per_s,
                "replayed_tokens_per_row": replayed.tokens / replayed.row_steps,
            }


def _check_same(asked: Sequence[Asked], outputs: Sequence[tuple[int, str]]) -> None:
    """Refuse to replay other requests: which ones ran depends on what the policy has seen."""
    for at, found in outputs:
        recorded = asked[at].recorded
        if recorded is None or digest(recorded.output_tokens.tolist()) != found:
            sys.exit(f"replay: request {at} is not the one that ran: name the policy that served")


def _counted(request: Request | None) -> Request:
    """A shortened request with as many counts as it has tokens."""
    assert request is not None and request.neural_accepted is not None
    return replace(request, neural_accepted=request.neural_accepted[: len(request.output_tokens)])


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="the folder of all results")
    parser.add_argument("--policy", required=True, help="the policy that served there")
    options = parser.parse_args()
    rows = list(replays(options.results, options.policy))
    write_json(options.results / "replay.json", {"schema": SCHEMA, "rows": rows})
    plan = read_json(options.results / "plan.json")
    assert plan is not None
    write_report(options.results, plan)
    print(f"The report: {options.results / 'report.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
