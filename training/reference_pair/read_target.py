"""Let the target answer the corpus' prompts, and keep its tokens, hidden states and best tokens.

    python read_target.py --target work/target --corpus corpus -o work/states \\
        --tokens 2000000 --part 0/2

Shards appear as they fill; a terminated run writes what is finished, and goes on behind it when
started again. Several parts may run at
once, one per core. Half of the answers are greedy, half sampled at temperature 0.7 among the
16 best tokens, so that the head also sees what an unlucky token leads to; held-out answers are
greedy. With --texts the target does not answer but reads the corpus' own answers, which is some
three times as fast: contexts that it did not write, labels that are its own. With --held-out it
answers prompts that no other mode takes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from corpus import CorpusError, Prompt, encode, interleave
from target import TOP, Cache, Target, TargetError, default_layers
from torch import Tensor

# A sequence whose last LOOP_GRAM tokens came LOOP_TIMES before is looping and ends there.
LOOP_GRAM, LOOP_TIMES = 8, 2


@dataclass
class Sequence:
    """A prompt being answered in a slot."""

    prompt: Prompt
    tokens: list[int]
    prompt_tokens: int
    temperature: float
    grams: dict[tuple[int, ...], int] = field(default_factory=dict)
    end: str = ""

    def loops(self) -> bool:
        """Whether the newest n-gram of the answer has come too often."""
        if len(self.tokens) - self.prompt_tokens < LOOP_GRAM:
            return False
        gram = tuple(self.tokens[-LOOP_GRAM:])
        self.grams[gram] = self.grams.get(gram, 0) + 1
        return self.grams[gram] > LOOP_TIMES


class ShardWriter:
    """Collects finished sequences and writes them as shards of about `shard_tokens`."""

    def __init__(
        self,
        folder: Path,
        part: str,
        keep: tuple[int, ...],
        shard_tokens: int,
        tokens_only: bool,
    ) -> None:
        self.tokens_only = tokens_only
        self.folder, self.part, self.keep, self.shard_tokens = folder, part, keep, shard_tokens
        self.waiting: list[tuple[Sequence, Tensor, Tensor, Tensor]] = []
        self.count = 0
        self.seen: set[str] = set()
        self.tokens = 0
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob(f"{part}-*.json")):
            meta = json.loads(path.read_text())
            if meta["layers"] != ([] if tokens_only else list(keep)):
                raise TargetError(
                    f"{path}: holds layers {meta['layers']}, now {list(keep)}: use a new folder"
                )
            self.seen |= {sequence["id"] for sequence in meta["sequences"]}
            self.tokens += meta["tokens"]
            self.count += 1

    def add(self, sequence: Sequence, states: Tensor, ids: Tensor, probs: Tensor) -> None:
        """Keep a finished sequence; write a shard when enough are there."""
        self.waiting.append((sequence, states.clone(), ids.clone(), probs.clone()))
        self.tokens += len(states)
        if sum(len(item[1]) for item in self.waiting) >= self.shard_tokens:
            self.flush()

    def flush(self) -> None:
        """Write what waits; the .json comes last and makes the shard count."""
        if not self.waiting:
            return
        stem = self.folder / f"{self.part}-{self.count:05d}"
        sequences, start = [], 0
        for sequence, states, _, _ in self.waiting:
            sequences.append(
                {
                    "id": sequence.prompt.id,
                    "kind": sequence.prompt.kind,
                    "bare": sequence.prompt.bare,
                    "held_out": sequence.prompt.held_out,
                    "temperature": sequence.temperature,
                    "end": sequence.end,
                    "start": start,
                    "length": len(states),
                    "prompt": sequence.prompt_tokens,
                }
            )
            start += len(states)
        tokens = [item[0].tokens[: len(item[1])] for item in self.waiting]
        np.save(f"{stem}.tokens.npy", np.concatenate([np.array(t, np.int32) for t in tokens]))
        columns = () if self.tokens_only else (("states", 1), ("top_ids", 2), ("top_p", 3))
        for name, column in columns:
            np.save(
                f"{stem}.{name}.npy", torch.cat([item[column] for item in self.waiting]).numpy()
            )
        layers = [] if self.tokens_only else list(self.keep)
        meta = {"layers": layers, "tokens": start, "sequences": sequences}
        scratch = stem.with_suffix(".partial")
        scratch.write_text(json.dumps(meta))
        scratch.rename(stem.with_suffix(".json"))
        self.seen |= {sequence["id"] for sequence in sequences}
        self.count += 1
        self.waiting = []


class Reader:
    """Continuous batching: slots are refilled from the prompts as sequences end."""

    def __init__(
        self, target: Target, writer: ShardWriter, slots: int, length: int, max_new: int, eos: int
    ) -> None:
        self.target, self.writer, self.max_new, self.eos = target, writer, max_new, eos
        self.length = length
        self.cache = Cache(target, slots, length)
        self.active: list[Sequence | None] = [None] * slots
        n = len(writer.keep)
        self.states = torch.zeros(slots, length, n, target.hidden, dtype=torch.half)
        self.top_ids = torch.zeros(slots, length, TOP, dtype=torch.int32)
        self.top_p = torch.zeros(slots, length, TOP, dtype=torch.half)

    def columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """What is kept per slot and position."""
        return self.states, self.top_ids, self.top_p

    def take(self, slot: int, ids: Tensor, probs: Tensor) -> None:
        """Choose the slot's next token among the best; end the sequence where it is over."""
        sequence = self.active[slot]
        assert sequence is not None
        choice = 0
        if sequence.temperature > 0:
            choice = int(torch.multinomial(probs.float() ** (1 / sequence.temperature), 1))
        token = int(ids[choice])
        fed = len(sequence.tokens)
        sequence.tokens.append(token)
        if token == self.eos:
            sequence.end = "stop"
        elif sequence.loops():
            sequence.end = "loop"
        elif fed - sequence.prompt_tokens >= self.max_new or fed >= self.length:
            sequence.end = "length"
        if sequence.end:
            self.finish(slot, fed)

    def finish(self, slot: int, fed: int) -> None:
        """Keep the slot's sequence and free the slot."""
        sequence = self.active[slot]
        assert sequence is not None
        self.writer.add(sequence, *(column[slot, :fed] for column in self.columns()))
        self.active[slot] = None

    def admit(self, waiting: deque[Sequence], at_once: int) -> None:
        """Fill free slots, a few at a time so that prompts are read together."""
        free = [slot for slot, sequence in enumerate(self.active) if sequence is None]
        while waiting and free and (len(free) >= at_once or len(free) == len(self.active)):
            group = [waiting.popleft() for _ in range(min(at_once, len(free), len(waiting)))]
            slots, free = free[: len(group)], free[len(group) :]
            width = max(len(sequence.tokens) for sequence in group)
            tokens = torch.zeros(len(group), width, dtype=torch.long)
            for row, sequence in enumerate(group):
                tokens[row, : len(sequence.tokens)] = torch.tensor(sequence.tokens)
            device = self.target.device
            states, final = self.target.prefill(
                tokens.to(device), torch.tensor(slots, device=device), self.cache, self.writer.keep
            )
            for row, (slot, sequence) in enumerate(zip(slots, group, strict=True)):
                n = len(sequence.tokens)
                ids, probs = (x.cpu() for x in self.target.best(final[row, :n]))
                self.states[slot, :n] = states[row, :n].cpu()
                self.top_ids[slot, :n], self.top_p[slot, :n] = ids, probs
                self.active[slot] = sequence
                if sequence.end:
                    self.finish(slot, n)
                else:
                    self.take(slot, ids[-1], probs[-1])

    def step(self) -> None:
        """Decode one token in every slot."""
        device = self.target.device
        last = [sequence.tokens[-1] if sequence else 0 for sequence in self.active]
        at = [len(sequence.tokens) - 1 if sequence else 0 for sequence in self.active]
        states, final = self.target.decode(
            torch.tensor(last, device=device),
            torch.tensor(at, device=device),
            self.cache,
            self.writer.keep,
        )
        ids, probs = (x.cpu() for x in self.target.best(final))
        rows, where = torch.arange(len(at)), torch.tensor(at)
        self.states[rows, where] = states.cpu()
        self.top_ids[rows, where], self.top_p[rows, where] = ids, probs
        for slot, sequence in enumerate(self.active):
            if sequence is not None:
                self.take(slot, ids[slot], probs[slot])


def prepare(prompt: Prompt, tokenizer: Any, arguments: argparse.Namespace) -> Sequence | None:
    """The prompt as a sequence to answer or read, or None where there is no room or answer."""
    if prompt.held_out != arguments.held_out:
        return None
    ids = encode(tokenizer, prompt)
    if not ids or len(ids) > arguments.length - min(arguments.max_new, 96):
        return None
    if not arguments.texts:
        greedy = prompt.held_out or int(prompt.id, 16) % 2 == 0
        return Sequence(prompt, ids, len(ids), 0.0 if greedy else 0.7)
    if not prompt.answer.strip():
        return None
    read = ids + list(tokenizer(prompt.answer)["input_ids"]) + [tokenizer.eos_token_id]
    return Sequence(prompt, read[: arguments.length], len(ids), 1.0, end="text")


def read(arguments: argparse.Namespace) -> None:
    """Answer prompts until enough tokens are kept."""
    part, parts = (int(n) for n in arguments.part.split("/"))
    torch.manual_seed(arguments.seed * 1000 + part)
    dtype = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}[arguments.dtype]
    target = Target(arguments.target, arguments.device, dtype)
    from transformers import AutoTokenizer  # takes seconds

    tokenizer = AutoTokenizer.from_pretrained(arguments.target)
    keep = tuple(arguments.layers or default_layers(target.layers))
    name = "texts" if arguments.texts else "held" if arguments.held_out else "answers"
    writer = ShardWriter(
        arguments.output, f"{name}{part}", keep, arguments.shard_tokens, arguments.tokens_only
    )
    reader = Reader(
        target, writer, arguments.slots, arguments.length, arguments.max_new, tokenizer.eos_token_id
    )
    # Answering and reading take the prompts in different orders, to see more of them sooner.
    order = interleave(arguments.corpus, arguments.seed + arguments.texts)
    prompts = itertools.islice(order, part, None, parts)
    sequences = (
        sequence
        for prompt in prompts
        if prompt.id not in writer.seen and (sequence := prepare(prompt, tokenizer, arguments))
    )
    print(
        f"reading in {target.dtype}, layers {keep}, {writer.tokens} tokens kept before", flush=True
    )
    began, before, said = time.monotonic(), writer.tokens, 0.0
    goal = arguments.tokens // parts
    waiting: deque[Sequence] = deque()
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    while writer.tokens < goal and not stopped:
        waiting.extend(itertools.islice(sequences, arguments.slots - len(waiting)))
        if not waiting and not any(reader.active):
            break
        if arguments.texts and arguments.tokens_only:
            # Nothing to ask the target: the training will.
            for sequence in waiting:
                n = len(sequence.tokens)
                writer.add(sequence, *(column[0, :n] for column in reader.columns()))
            waiting.clear()
            continue
        if arguments.texts:
            waiting = deque(sorted(waiting, key=lambda sequence: len(sequence.tokens)))
        reader.admit(waiting, arguments.at_once)
        if any(reader.active):
            reader.step()
        seconds = time.monotonic() - began
        if seconds - said > 60:
            said = seconds
            rate = (writer.tokens - before) / seconds
            print(f"{seconds:.0f} s: {writer.tokens} tokens, {rate:.0f} per second", flush=True)
    writer.flush()
    print(f"{arguments.output}: {writer.tokens} tokens in {writer.count} shards", flush=True)


def main() -> int:
    """Run the command line; 2 and one line on standard error where the input is at fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True, help="the target's folder")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of *.jsonl.gz")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the shards")
    parser.add_argument("--tokens", type=int, default=2_000_000, help="over all parts")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="of N processes, the I-th")
    parser.add_argument("--texts", action="store_true", help="read the corpus' own answers")
    parser.add_argument("--held-out", action="store_true", help="answer held-out prompts alone")
    parser.add_argument(
        "--tokens-only",
        action="store_true",
        help="keep no states: the training reads the tokens again, as pays on a GPU",
    )
    parser.add_argument("--slots", type=int, default=64, help="sequences at once")
    parser.add_argument("--at-once", type=int, default=8, help="prompts read together")
    parser.add_argument("--length", type=int, default=512, help="longest prompt and answer")
    parser.add_argument("--max-new", type=int, default=224, help="longest answer")
    parser.add_argument("--layers", type=int, nargs="+", help="states to keep, counted as in vLLM")
    parser.add_argument("--shard-tokens", type=int, default=32_768)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        read(arguments)
    except (CorpusError, TargetError) as error:
        print(f"read_target: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
