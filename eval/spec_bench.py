"""Spec-Bench's questions as prompts to record: a public test that no policy was trained on.

    python eval/spec_bench.py question.jsonl -o work/spec-bench-prompts

`question.jsonl` is data/spec_bench/question.jsonl of github.com/hemingkx/Spec-Bench, of 480
questions in thirteen categories. Its paper counts six kinds: the eight categories that were
MT-Bench's are one. Of 80 questions, the second turn is asked behind the answer to the first.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

KINDS = {
    "translation": "translation",
    "summarization": "summarization",
    "qa": "question-answering",
    "math_reasoning": "mathematics",
    "rag": "retrieval",
}
"""A category of Spec-Bench -> its kind; what is not here is of multi-turn conversation."""


def prompt_of(record: dict[str, Any]) -> dict[str, Any]:
    """A question as `training/reference_pair/record_traces.py` takes it.

    Its turns stand under `turns`, as in Spec-Bench, or under `messages`, as chats have them.
    """
    category = str(record.get("category") or record["workload"]).rpartition("/")[2]
    turns = record.get("turns") or [each["content"] for each in record["messages"]]
    return {
        "workload": KINDS.get(category, "conversation"),
        "id": str(record.get("question_id") or record["id"]).rpartition("-")[2],
        "messages": [{"role": "user", "content": turn} for turn in turns],
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("questions", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True, help="a folder")
    options = parser.parse_args()
    try:
        # Some texts hold what `splitlines` takes for an end of a line.
        lines = options.questions.read_text(encoding="utf-8").strip().split("\n")
        prompts = [prompt_of(json.loads(line)) for line in lines]
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"spec_bench: {options.questions}: holds no questions of Spec-Bench: {error!r}")
    options.out.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(each) + "\n" for each in prompts)
    (options.out / "questions.jsonl").write_text(text, encoding="utf-8")
    print(f"{len(prompts)} questions in {options.out}")


if __name__ == "__main__":
    main()
