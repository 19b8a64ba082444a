"""Make up agent-like traffic: tool calls, forms and retries, in which answers repeat each other.

    python eval/agent_traffic.py gsm8k.jsonl humaneval.jsonl \\
        --tokenizer demo/SmolLM2-135M-Instruct -o eval/traces/agents

reads tasks, {"prompt": .., "reference": ..} a line, of files whose licences allow it (those are
MIT). Nobody said these answers: a script fills them in from the prompts, so that there is something
to hold a memory of earlier answers against. Three workloads:

    tool_calls   a system prompt with the tools, a task, the tools' results so far; the answer is
                 a thought of a few fixed kinds and a call in JSON with words of the task
    forms        a report with fixed headings and sentences, filled in from the task
    retries      a task with its solution as the answer, asked up to three times, of which the
                 later answers differ in a word or two

No drafter is recorded: such traces replay what copies.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

EACH = 60
"""Requests of each workload."""
TOOLS = ("search_documents", "read_file", "run_python", "query_database")
THOUGHTS = (
    "I need to look this up before I can answer.",
    "The last result is incomplete, so I will ask for the rest.",
    "I have what I need; one more check of the numbers remains.",
)
SYSTEM = (
    "You are an agent. Reply with one short thought and one call, as JSON with the keys "
    '"thought", "tool", "arguments" and "on_error". Tools: ' + ", ".join(TOOLS) + "."
)


def tool_calls(tasks: list[dict[str, str]], chance: random.Random) -> Iterator[tuple[str, str]]:
    """(prompt, answer) of one step of an agent."""
    for number, task in enumerate(tasks):
        words = re.findall(r"[A-Za-z]{4,}", task["prompt"])
        tool = TOOLS[number % len(TOOLS)]
        query = " ".join(chance.sample(words, min(4, len(words))))
        arguments = {
            "search_documents": {"query": query, "limit": 10, "include_archived": False},
            "read_file": {"path": f"workspace/notes/{words[0].lower()}.md", "from_line": 1},
            "run_python": {"code": f"print(sum([{number}, {len(words)}]))", "timeout_s": 30},
            "query_database": {
                "table": "orders",
                "where": f"note LIKE '%{words[-1]}%'",
                "limit": 50,
            },
        }[tool]
        call = {
            "thought": chance.choice(THOUGHTS),
            "tool": tool,
            "arguments": arguments,
            "on_error": {"retry": 2, "then": "report_to_user", "message": "The tool failed."},
        }
        result = json.dumps({"status": "ok", "rows": chance.randrange(100), "tool": tool})
        yield (
            f"{SYSTEM}\n\nTask: {task['prompt']}\n\nResult: {result}\n",
            json.dumps(call, indent=2),
        )


def forms(tasks: list[dict[str, str]], chance: random.Random) -> Iterator[tuple[str, str]]:
    """(prompt, answer) of a report with fixed headings."""
    for number, task in enumerate(tasks):
        numbers = re.findall(r"\d+", task["prompt"]) or ["none"]
        words = re.findall(r"[A-Z]?[a-z]{5,}", task["prompt"])
        answer = (
            f"# Ticket {4000 + number}\n\n## Summary\nThe customer writes about "
            f"{' and '.join(chance.sample(words, 2))}.\n\n## Figures that were named\n"
            + "".join(f"- {each}\n" for each in numbers[:4])
            + f"\n## Assessment\nPriority: {chance.choice(('low', 'normal', 'high'))}\n"
            "The request is complete and can be answered without asking back.\n\n"
            "## Next steps\n1. Confirm receipt to the customer.\n2. Forward the ticket to the team "
            f"for {chance.choice(('billing', 'shipping', 'returns'))}.\n3. Close it after two days "
            "without an answer.\n"
        )
        yield f"Fill in the ticket form for this message:\n\n{task['prompt']}\n", answer


def retries(tasks: list[dict[str, str]], chance: random.Random) -> Iterator[tuple[str, str]]:
    """(prompt, answer) of tasks that are asked again, the answer slightly reworded."""
    for task in tasks[: EACH // 3]:
        words = task["reference"].split(" ")
        for attempt in range(3):
            said = list(words)
            for _ in range(attempt):
                said[chance.randrange(len(said))] = chance.choice(("then", "so", "now", "thus"))
            yield f"Solve this, attempt {attempt + 1}:\n\n{task['prompt']}\n", " ".join(said)


def main() -> None:
    """Write the trace."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompts", type=Path, nargs="+")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a model's folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--out", type=Path, required=True, help="the trace's folder")
    options = parser.parse_args()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(options.tokenizer))
    lines = [line for path in options.prompts for line in path.read_text().splitlines()]
    tasks = [each for each in map(json.loads, lines) if "prompt" in each and "reference" in each]
    chance = random.Random(options.seed)
    chance.shuffle(tasks)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for make in (tool_calls, forms, retries):
            for number, (prompt, answer) in enumerate(make(tasks[:EACH], chance)):
                request = {
                    "workload": make.__name__,
                    "id": str(number),
                    "prompt_token_ids": tokenizer.encode(prompt),
                    "output_token_ids": tokenizer.encode(answer),
                }
                file.write(json.dumps(request) + "\n")
        file.flush()
        command = ["import", "jsonl", file.name, "-o", str(options.out), "--force"]
        target = ["--target", "none: answers were made up by eval/agent_traffic.py"]
        subprocess.run([sys.executable, "-m", "adaspec", *command, *target], check=True)


if __name__ == "__main__":
    main()
