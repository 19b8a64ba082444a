"""Prompts to train a head with: the corpus' records as chat turns, sources interleaved by share."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# file -> (workload it stands for, share of the prompts). Only what a shipped model may be trained
# on; the card names the sources and their licences.
SOURCES: dict[str, tuple[str, float]] = {
    "gsm8k_train": ("math", 0.24),
    "synthetic_code_edits": ("edit", 0.24),
    "python_code": ("code", 0.22),
    "gpteacher": ("chat", 0.24),
    "sgd_dialogues": ("chat", 0.05),
    "taskmaster4": ("chat", 0.01),
}
HELD_OUT_SHARE = 1 / 40
# Of the prompts, how many are given as bare text, without the chat template.
BARE_SHARE = 0.08
FUNCTION = re.compile(r'^def \w+\([^"]*?\)[^"\n]*:\n\s+r?""".*?"""\n', re.MULTILINE | re.DOTALL)
# What follows it up to the next line that is not indented.
BODY = re.compile(r"(?:[ \t]+[^\n]*\n|\n)*")


class CorpusError(Exception):
    """The corpus lacks a file, or a record cannot be used."""


@dataclass(frozen=True)
class Prompt:
    """What the target is asked: chat messages, or bare text where `bare` says so.

    `answer` is the corpus' own.
    """

    id: str
    kind: str
    messages: tuple[dict[str, str], ...]
    answer: str
    bare: bool
    held_out: bool


def read_records(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """The records of one corpus file."""
    path = folder / f"{name}.jsonl.gz"
    if not path.is_file():
        raise CorpusError(f"{path}: no such corpus file: point --corpus at the folder that has it")
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise CorpusError(
                        f"{path} line {number}: not JSON ({error}): get it anew"
                    ) from None
    except (OSError, EOFError) as error:
        raise CorpusError(f"{path}: cannot be read as gzip ({error}): get it anew") from None


def ask(
    record: dict[str, Any], pick: random.Random
) -> Iterator[tuple[tuple[dict[str, str], ...], str]]:
    """The questions in a record, with its answers.

    A prompt, a dialogue up to a turn of the user's, the heads of a text's functions.
    """
    if "prompt" in record:
        yield ({"role": "user", "content": record["prompt"]},), record["response"]
    elif "messages" in record:
        turns = record["messages"]
        users = [i for i, turn in enumerate(turns[:-1]) if turn["role"] == "user"]
        if users:
            last = pick.choice(users)
            yield tuple(turns[: last + 1]), turns[last + 1]["content"]
    elif "text" in record:
        for match in FUNCTION.finditer(record["text"]):
            if 80 <= len(match.group()) <= 1200:
                body = BODY.match(record["text"], match.end())
                yield ({"role": "user", "content": match.group()},), body.group() if body else ""


def _shuffled(folder: Path, name: str, kind: str, seed: int) -> list[Prompt]:
    pick = random.Random(f"{seed}/{name}")
    found: dict[str, Prompt] = {}
    for record in read_records(folder, name):
        for messages, answer in ask(record, pick):
            text = json.dumps([messages, name], sort_keys=True)
            digest = hashlib.sha256(text.encode()).digest()
            key = digest[:8].hex()
            held_out = int.from_bytes(digest[8:12]) < HELD_OUT_SHARE * 2**32
            bare = len(messages) == 1 and int.from_bytes(digest[12:16]) < BARE_SHARE * 2**32
            found[key] = Prompt(key, kind, messages, answer, bare, held_out)
    prompts = list(found.values())
    pick.shuffle(prompts)
    return prompts


def interleave(folder: Path, seed: int) -> Iterator[Prompt]:
    """Every prompt once, sources mixed by their shares for as long as they last."""
    queues = {name: _shuffled(folder, name, kind, seed) for name, (kind, _) in SOURCES.items()}
    given = dict.fromkeys(SOURCES, 0)
    while queues := {name: queue for name, queue in queues.items() if given[name] < len(queue)}:
        name = min(queues, key=lambda name: (given[name] + 0.5) / SOURCES[name][1])
        yield queues[name][given[name]]
        given[name] += 1


def count_tokens(tokenizer: Any, folder: Path, seed: int, characters: int = 1_500_000) -> Counter:
    """How often each token comes in prompts and answers, by the sources' shares."""
    counts: Counter[int] = Counter()
    for name, (kind, share) in SOURCES.items():
        left = int(characters * share / max(share for _, share in SOURCES.values()))
        texts: list[str] = []
        for prompt in _shuffled(folder, name, kind, seed):
            text = prompt.messages[-1]["content"] + "\n" + prompt.answer
            texts.append(text)
            left -= len(text)
            if left < 0:
                break
        for ids in tokenizer(texts)["input_ids"]:
            counts.update(ids)
    return counts


def encode(tokenizer: Any, prompt: Prompt) -> list[int]:
    """The prompt's token ids, as a server would make them."""
    if prompt.bare:
        return list(tokenizer(prompt.messages[0]["content"])["input_ids"])
    ids = tokenizer.apply_chat_template(
        list(prompt.messages), add_generation_prompt=True, return_dict=True
    )
    return list(ids["input_ids"])
