"""Make a tiny corpus and a tiny target from nothing, for tests and CI.

    python training/reference_pair/make_tiny.py -o work/tiny

Writes `corpus/` (the files that corpus.py names, their text made by script), `prompts/` to record
traces from, and `target/` (a Llama of a few 100,000 parameters, trained on text like the corpus' in
under a minute on one core).
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from corpus import BARE_SHARE, SOURCES, ask
from model_folder import staged_model_folder
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

NAMES = ["Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gwen", "Hal"]
THINGS = ["apples", "books", "coins", "pens", "stamps", "shells"]
WORDS = ["total", "count", "value", "items", "width", "score", "index", "names"]
PLACES = ["Rome", "Oslo", "Lima", "Cairo", "Kyoto", "Paris"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_math(pick: random.Random) -> dict[str, Any]:
    """A sum and its working."""
    name, thing = pick.choice(NAMES), pick.choice(THINGS)
    a, b = pick.randint(2, 20), pick.randint(2, 20)
    return {
        "prompt": f"{name} has {a} {thing} and buys {b} more {thing}. How many has {name} now?",
        "response": f"{name} had {a} {thing}.\n{name} bought {b} more {thing}.\n"
        f"So {name} now has {a} + {b} = {a + b} {thing}.\n#### {a + b}",
    }


def make_function(pick: random.Random) -> str:
    """A small function with a docstring."""
    name, argument = pick.choice(WORDS), pick.choice(WORDS)
    operator, number = pick.choice("+-*"), pick.randint(1, 9)
    return (
        f"def get_{name}({argument}: int) -> int:\n"
        f'    """Return the {name} of the {argument}, which is {argument} {operator} {number}.'
        f'"""\n    {name} = {argument} {operator} {number}\n    return {name}\n'
    )


def make_edit(pick: random.Random) -> dict[str, Any]:
    """A function, and the same with a name changed."""
    body = make_function(pick)
    old = body.split("(")[1].split(":")[0]
    new = pick.choice([word for word in WORDS if word not in body])
    return {
        "prompt": f"Rename `{old}` to `{new}`.\n\n### Input:\n{body}",
        "response": f"```python\n{body.replace(old, new)}```",
    }


def make_chat(pick: random.Random) -> dict[str, Any]:
    """A question of the gazetteer kind."""
    name, place, thing = pick.choice(NAMES), pick.choice(PLACES), pick.choice(THINGS)
    return {
        "prompt": f"Tell me about {name}, who lives in {place}.",
        "response": f"{name} lives in {place}. In {place}, {name} sells {thing} at the market. "
        f"Everyone in {place} knows {name} for these {thing}.",
    }


def make_dialogue(pick: random.Random) -> dict[str, Any]:
    """Two turns about a booking."""
    place, count = pick.choice(PLACES), pick.randint(2, 9)
    talk = [
        f"I need a room in {place}.",
        f"Sure, a room in {place}. For how many nights?",
        f"For {count} nights, please.",
        f"Done: a room in {place} for {count} nights. Anything else?",
    ]
    roles = ["user", "assistant"] * 2
    return {
        "messages": [{"role": r, "content": c} for r, c in zip(roles, talk, strict=True)],
    }


MAKERS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "gsm8k_train": make_math,
    "synthetic_code_edits": make_edit,
    "python_code": lambda pick: {"text": make_function(pick)},
    "gpteacher": make_chat,
    "sgd_dialogues": make_dialogue,
    "taskmaster4": make_dialogue,
}


def write_corpus(folder: Path, records: int, seed: int) -> None:
    """The corpus' files, the same bytes for the same seed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in SOURCES:
        pick = random.Random(f"{seed}/{name}")
        lines = [json.dumps(MAKERS[name](pick)) + "\n" for _ in range(records)]
        data = gzip.compress("".join(lines).encode(), mtime=0)
        (folder / f"{name}.jsonl.gz").write_bytes(data)


def write_prompts(folder: Path, records: int, seed: int) -> None:
    """Prompts of three workloads, as `eval/prompts` holds them; dialogues have two user turns."""
    folder.mkdir(parents=True, exist_ok=True)
    makers = {"maths": make_math, "edits": make_edit, "talks": make_dialogue}
    for workload, make in makers.items():
        pick = random.Random(f"{seed}/prompts/{workload}")
        lines = []
        for at in range(records):
            record = make(pick)
            asked = [turn for turn in record.get("messages", ()) if turn["role"] == "user"]
            messages = asked or [{"role": "user", "content": record["prompt"]}]
            prompt = {"workload": workload, "id": str(at), "messages": messages}
            lines.append(json.dumps(prompt) + "\n")
        (folder / f"{workload}.jsonl").write_text("".join(lines), encoding="utf-8")


def chats(records: int, seed: int) -> list[list[dict[str, str]]]:
    """What the target learns: chats with answers; code's answer is the function's body."""
    found = []
    for name in SOURCES:
        pick = random.Random(f"{seed}/target/{name}")
        for _ in range(records):
            record = MAKERS[name](pick)
            if "messages" in record:
                found.append(record["messages"])
                continue
            ((question, answer),) = ask(record, pick)
            found.append([*question, {"role": "assistant", "content": answer}])
    random.Random(seed).shuffle(found)
    return found


def make_tokenizer(texts: list[str], vocab: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE learned from the texts, with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        chat_template=TEMPLATE,
    )


def train_target(folder: Path, steps: int, seed: int) -> None:
    """Train the tiny target and save it with its tokenizer."""
    torch.manual_seed(seed)
    talks = chats(600, seed)
    texts = [turn["content"] for talk in talks for turn in talk]
    tokenizer = make_tokenizer(texts, 512)
    pick = random.Random(seed)
    stream: list[int] = []
    for talk in talks:
        if pick.random() < BARE_SHARE:
            text = "".join(turn["content"] for turn in talk) + "<|im_end|>"
        else:
            text = tokenizer.apply_chat_template(talk, tokenize=False)
        stream += tokenizer(text)["input_ids"]
    width = 160
    rows = torch.tensor(stream[: len(stream) // width * width]).view(-1, width)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 4e-3 * min(1.0, (step + 1) / 20, 1.1 * (1 - step / steps))
        batch = rows[torch.randint(len(rows), (12,))]
        loss = model(input_ids=batch, labels=batch).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    with staged_model_folder(folder) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{folder}: {size} parameters, loss {loss.item():.3f} after {steps} steps")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--records", type=int, default=400, help="per corpus file")
    parser.add_argument("--prompts", type=int, default=30, help="per workload")
    parser.add_argument("--steps", type=int, default=250, help="of training the target")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write_corpus(arguments.output / "corpus", arguments.records, arguments.seed)
    write_prompts(arguments.output / "prompts", arguments.prompts, arguments.seed)
    train_target(arguments.output / "target", arguments.steps, arguments.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
