"""Replay what `rounds.py` ran on a GPU, under the builtin costs.

    python eval/gpu/replay.py results

The same requests in the same order, by the evaluator of `adaspec eval --engine async`. Writes
replay.json, and the report anew, which then says how far both are apart.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from figures import cost, rounds_in
from report import write_report
from results import SCHEMA, write_json
from workload import draw, recorded

from adaspec.cost.engine import ASYNC
from adaspec.evaluate.options import CAP
from adaspec.policy.learned import load_policy
from adaspec.replay.contender import parse_contender
from adaspec.replay.player import Player
from adaspec.replay.recording import build_recording

CONTENDERS = {
    "none": "none",
    "eagle3-1": "fixed:neural:1",
    "eagle3-2": "fixed:neural:2",
    "eagle3-3": "fixed:neural:3",
}
"""What methods are to the evaluator, where its name does not begin with adaspec's."""
OURS = "adaspec"


def replays(folder: Path) -> Iterator[dict[str, Any]]:
    """What each method does at each load, there and in a replay."""
    for file in rounds_in(folder):
        requests = {name: recorded(each) for name, each in file["plan"]["workloads"].items()}
        for cell in file["cells"]:
            workload, load, method = (cell[name] for name in ("workload", "load", "method"))
            policy = file["plan"]["workloads"][workload]["policy"]
            named = policy if method.startswith(OURS) else CONTENDERS.get(method.split("-1024")[0])
            if named is None:
                continue
            here = requests[workload]
            recording = build_recording(here, load_policy(policy).neural_cap)
            player = Player(recording.with_prefill(), cost(), CAP, ASYNC)
            lengths = [len(each.output_tokens) for each in here]
            order = draw(lengths, load, cell["seed"], cell["least"], cell["passes"]).counted
            replayed = player.play(parse_contender(named), np.array(order, np.int32), load)
            yield {
                "workload": workload,
                "method": method,
                "load": load,
                "round": cell["round"],
                "tokens_per_s": cell["tokens_per_s"],
                "tokens_per_row": cell["tokens_per_row"],
                "replayed_tokens_per_s": replayed.tokens_per_s,
                "replayed_tokens_per_row": replayed.tokens / replayed.row_steps,
            }


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="the folder of all results")
    options = parser.parse_args()
    rows = list(replays(options.results))
    write_json(options.results / "replay.json", {"schema": SCHEMA, "rows": rows})
    write_report(options.results)
    print(f"The report: {options.results / 'report.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
