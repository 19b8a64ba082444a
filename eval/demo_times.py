"""Print how long each part of `make demo` took, and write it to a file.

    python eval/demo_times.py demo/stages demo/times.json

The first file has one line per part, with its name and the seconds from the start to its end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from adaspec.vllm.machine import hardware


def times(lines: list[str]) -> dict[str, float]:
    """The minutes of each part, and of all parts."""
    parts, before = {}, 0
    for line in lines:
        name, end = line.split()
        parts[name.replace("_", " ")] = (int(end) - before) / 60
        before = int(end)
    return {**parts, "all": before / 60}


def main() -> None:
    """Read the stages, print the times and write them."""
    stages, written = map(Path, sys.argv[1:])
    minutes = times(stages.read_text().splitlines())
    parts = ", ".join(f"{name} {value:.1f}" for name, value in minutes.items() if name != "all")
    print(f"It took {minutes['all']:.1f} minutes: {parts}")
    document = {
        "schema": 1,
        "command": "make demo",
        "hardware": hardware(),
        "minutes": minutes,
    }
    written.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
