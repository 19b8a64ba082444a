"""Prompts that no trace holds, to judge a policy once on what it was not made for.

    python eval/fresh_prompts.py PROMPTS --not-in eval/prompts -o work/fresh-prompts

PROMPTS is a folder of JSON lines, a file per workload, with an id and a prompt or chat messages.
Of each file so many are drawn whose text is in none of --not-in; of a dialogue the first turn is
asked. Which ones depends on the text alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

LONGEST = 5000
"""Characters; longer prompts do not fit a small model's context."""


def asked(record: dict[str, Any]) -> str:
    """What is asked first."""
    if "prompt" in record:
        return str(record["prompt"])
    return next(str(each["content"]) for each in record["messages"] if each["role"] == "user")


def records_in(file: Path) -> list[dict[str, Any]]:
    """The objects of a file with one a line."""
    # Some texts hold what `splitlines` takes for an end of a line.
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


def key_of(text: str) -> str:
    """A prompt's place in the draw; the same for prompts that differ in blanks alone."""
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()


def drawn(records: list[dict[str, Any]], known: set[str], count: int) -> list[dict[str, Any]]:
    """So many records of those that are not known, as prompts to record."""
    texts = {key_of(asked(each)): each for each in records if len(asked(each)) <= LONGEST}
    return [
        {
            "workload": texts[key]["workload"],
            "id": texts[key]["id"],
            "messages": [{"role": "user", "content": asked(texts[key])}],
        }
        for key in sorted(texts.keys() - known)[:count]
    ]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--not-in", type=Path, action="append", default=[], metavar="FOLDER")
    parser.add_argument("--only", action="append", metavar="FILE", help="its name; repeatable")
    parser.add_argument("--workload", action="append", help="of prompts; repeatable")
    parser.add_argument("--count", type=int, default=80, help="per file")
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    known = {
        key_of(asked(each))
        for folder in options.not_in
        for file in sorted(folder.glob("*.jsonl"))
        for each in records_in(file)
    }
    files = sorted(options.prompts.glob("*.jsonl"))
    files = [file for file in files if options.only is None or file.stem in options.only]
    if not files:
        sys.exit(f"fresh_prompts: {options.prompts}: holds no such .jsonl file")
    options.out.mkdir(parents=True, exist_ok=True)
    for file in files:
        records = records_in(file)
        if options.workload is not None:
            records = [each for each in records if each["workload"] in options.workload]
        prompts = drawn(records, known, options.count)
        known |= {key_of(asked(each)) for each in prompts}
        lines = "".join(json.dumps(each) + "\n" for each in prompts)
        (options.out / file.name).write_text(lines, encoding="utf-8")
        print(f"{file.name}: {len(prompts)} prompts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
