"""Write the heads' card from what was read and logged: data, licences, losses, acceptance, limits.

    python write_card.py --states work/states --training work/eagle3-training \\
        work/eagle-training -o CARD.md
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

LICENCES = """\
| source | what | licence |
|---|---|---|
| openai/grade-school-math, training split | mathematics | MIT |
| made by script from the Python code below | code edits | those of the code |
| TheAlgorithms, LeetCode-Solutions, networkx, sympy | Python functions | MIT, BSD-3-Clause |
| GPTeacher | instructions | MIT |
| dstc8 schema-guided dialogue | dialogues | CC BY-SA 4.0 |
| Taskmaster-4 | dialogues | CC BY 4.0 |
| SmolLM2-135M-Instruct | the target: its answers, and every label | Apache-2.0 |
"""

LIMITS = """\
- They draft for this one target, as dequantised from its package: for other weights, even of the
  same model, they draft worse. Outputs stay the target's whatever is drafted.
- English and Python, sequences of at most 512 tokens: further on acceptance falls.
- Four steps were trained; a fifth and later ones are drafted by extrapolation.
- EAGLE-3 never drafts a token outside its draft vocabulary.
- The target is small and loops now and then; a looping answer was cut at the third repetition of
  eight tokens, so neither training nor these figures hold long loops, which are easy to draft.
"""


class CardError(Exception):
    """What the card is to tell is not there."""


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The rows of a training's log."""
    path = folder / "log.jsonl"
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    except FileNotFoundError:
        raise CardError(f"{path}: no such file: train first") from None
    except (OSError, ValueError) as error:
        raise CardError(f"{path}: cannot be read: {error}") from None
    if not any("report_at_tokens" in row for row in rows):
        raise CardError(f"{path}: tells of no held-out answers: train on")
    return rows


def tell_data(states: Path) -> list[str]:
    """How much was read, by how it came about."""
    tokens: Counter[tuple[str, str]] = Counter()
    sequences: Counter[tuple[str, str]] = Counter()
    shards = sorted(states.glob("*-*.json"))
    if not shards:
        raise CardError(f"{states}: holds nothing that read_target.py wrote")
    for path in shards:
        how = path.stem.split("-")[0].rstrip("0123456789")
        for sequence in json.loads(path.read_text())["sequences"]:
            key = (sequence["kind"], "held" if sequence["held_out"] else how)
            tokens[key] += sequence["length"]
            sequences[key] += 1
    names = {"answers": "answered", "texts": "read only", "held": "held out, answered"}
    lines = [
        "| workload | "
        + " | ".join(f"{name}: sequences, tokens" for name in names.values())
        + " |",
        "|---|" + "---|" * len(names),
    ]
    for kind in sorted({kind for kind, _ in tokens}):
        cells = [f"{sequences[kind, how]:,}, {tokens[kind, how]:,}" for how in names]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return lines


def tell_training(folder: Path, method: str) -> list[str]:
    """A head's losses and acceptance."""
    rows = read_log(folder)
    reports = [row for row in rows if "report_at_tokens" in row]
    losses = [row for row in rows if "loss" in row]
    last = reports[-1]
    lines = [
        f"## {method}",
        "",
        "Held-out greedy answers, four tokens drafted at every position:",
        "",
    ]
    lines += [
        "| tokens trained on, repeats counted | different tokens at hand | 1st | 2nd | 3rd | 4th | "
        "emitted, k = 4 |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in reports:
        cells = " | ".join(f"{x:.3f}" for x in row["all"]["agree"])
        lines.append(
            f"| {row['report_at_tokens']:,} | {row['corpus_tokens']:,} | {cells} | "
            f"{row['all']['emitted']:.2f} |"
        )
    lines += ["", "The j-th column is the share right of those whose tokens before were right."]
    lines += ["", "| workload | positions | 1st | 2nd | 3rd | 4th | emitted, k = 4 |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for kind in sorted(set(last) & {"math", "edit", "code", "chat"}):
        cells = " | ".join(f"{x:.3f}" for x in last[kind]["agree"])
        lines.append(
            f"| {kind} | {last[kind]['positions']:,} | {cells} | {last[kind]['emitted']:.2f} |"
        )
    if losses:
        said = ", ".join(f"{x:.2f}" for x in losses[-1]["loss"])
        lines += ["", f"Last training losses by step (cross entropy, nats): {said}."]
    return [*lines, ""]


def card(states: Path, trainings: list[Path]) -> str:
    """The card's text."""
    lines = ["# EAGLE-3 and EAGLE heads for SmolLM2-135M-Instruct", ""]
    lines += ["Made by the recipe in this folder; its README says how.", "", "## Data", ""]
    lines += [*tell_data(states), "", *LICENCES.splitlines(), ""]
    for folder in trainings:
        lines += tell_training(folder, "EAGLE-3" if "3" in folder.name else "EAGLE")
    lines += ["## Limits", "", *LIMITS.splitlines()]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=Path, required=True)
    parser.add_argument("--training", type=Path, nargs="+", required=True, help="with log.jsonl")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        text = card(arguments.states, arguments.training)
        arguments.output.write_text(text)
    except (CardError, OSError) as error:
        print(f"write_card: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
