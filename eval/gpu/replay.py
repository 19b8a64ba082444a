"""Replay what `rounds.py` ran on a GPU, under the costs that were measured there.

    python eval/gpu/replay.py results

The same requests in the same order, by the evaluator of `adaspec eval --engine async`. Writes
report.json and report.html, which say how far both are apart, with all else that was measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from figures import OURS, costs_of, measured_in
from report import write_report
from workload import draw, recorded

from adaspec.cost import ASYNC
from adaspec.evaluate.options import CAP
from adaspec.policy.protocol import load_policy
from adaspec.replay.contender import parse_contender
from adaspec.replay.player import Player
from adaspec.replay.recording import build_recording

CONTENDERS = {
    "none": "none",
    "eagle3-1": "fixed:neural:1",
    "eagle3-2": "fixed:neural:2",
    "eagle3-3": "fixed:neural:3",
    "ngram": "fixed:ngram:5:3",
}
"""What vLLM's methods are to the evaluator."""


def replays(folder: Path) -> Iterator[dict[str, Any]]:
    """What each method does at each load, there and in a replay."""
    head, engines, cells = measured_in(folder)
    settings = head["plan"]["requests"]
    requests, policy = recorded(settings), settings["policy"]
    recording = build_recording(requests, load_policy(policy).neural_cap)
    player = Player(recording.with_prefill(), costs_of(engines), CAP, ASYNC)
    lengths = [len(each.output_tokens) for each in requests]
    for cell in cells:
        if cell["stage"] != "round" or not cell["round"]:
            continue
        load, method = cell["load"], cell["method"]
        contender = parse_contender(policy if method == OURS else CONTENDERS[method])
        order = draw(lengths, load, cell["round"], cell["counted"]).counted
        replayed = player.play(contender, np.array(order, np.int32), load)
        yield {
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
    write_report(options.results, list(replays(options.results)))
    print(f"The report: {options.results / 'report.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
