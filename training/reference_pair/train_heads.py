"""Train an EAGLE-3 or EAGLE head on the states that `read_target.py` kept.

    python train_heads.py --method eagle3 --target work/target --states work/states \\
        -o work/eagle3 --tokens 8000000
    python train_heads.py ... --export training/reference_pair/eagle3     # the averaged weights

The labels are the target's own next-token distributions, at every step of the unrolled drafting.
A run that was killed goes on from its last checkpoint and reaches the same loss; `log.jsonl` in
the output folder holds losses and, at every doubling of the tokens seen, held-out acceptance.
"""

from __future__ import annotations

import argparse
import copy
import json
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from corpus import CorpusError, count_tokens
from drafting import DraftLoss, accept, shift, unroll
from heads import EagleHead, HeadError, Linear, load_head, make_head, save_head
from states import Batch, Item, States, StatesError, arrange, complete
from target import Target, TargetError, default_layers, fastest_dtype
from torch import Tensor

# The chat template's system message is the same in every sequence: nothing to learn there.
PREAMBLE = 24
# What a training must keep when it goes on.
FIXED = ("method", "unroll", "single_tokens", "batch_tokens", "seed")


class Trainer:
    """A head, its optimiser and its average, and where in the data they are."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.folder: Path = arguments.output
        self.folder.mkdir(parents=True, exist_ok=True)
        self.step = self.tokens = self.epoch = self.batch = 0
        self.seconds = 0.0
        self.next_report = arguments.first_report
        self.checkpoint = self.folder / "checkpoint.pt"
        saved = None
        if self.checkpoint.is_file():
            saved = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
            self._check(saved)
        self.states = States(arguments.states, saved["shards"] if saved else None)
        self.target: Target | None = None
        config = json.loads((arguments.target / "config.json").read_text())
        self.layers, self.vocab = config["num_hidden_layers"], config["vocab_size"]
        device = arguments.device
        if saved:
            self.draft_ids, self.scales = saved["draft_ids"], saved["scales"]
            self.layer_ids = tuple(saved["layer_ids"])
        else:
            self.layer_ids = self._layer_ids()
            self.draft_ids = self._draft_ids()
            self.scales = self._scales()
        torch.manual_seed(arguments.seed)
        self.head = make_head(
            arguments.method, arguments.target, self.layer_ids, self.draft_ids, self.scales
        ).to(device)
        self.mean = copy.deepcopy(self.head)
        self.optimiser = torch.optim.AdamW(
            self.head.parameters(), lr=arguments.rate, betas=(0.9, 0.95), weight_decay=0.01
        )
        # Target id -> draft id, -1 where the draft vocabulary lacks it.
        self.to_draft = torch.full((self.head.shape.vocab,), -1, device=device)
        self.to_draft[self.draft_ids.to(device)] = torch.arange(len(self.draft_ids), device=device)
        if saved:
            self.head.load_state_dict(saved["head"])
            self.mean.load_state_dict(saved["mean"])
            self.optimiser.load_state_dict(saved["optimiser"])
            for name in ("step", "tokens", "epoch", "batch", "seconds", "next_report"):
                setattr(self, name, saved[name])

    def _check(self, saved: dict[str, Any]) -> None:
        for name in FIXED:
            ours = getattr(self.arguments, name)
            theirs = saved["arguments"].get(name, ours)
            if ours != theirs:
                flag = "--" + name.replace("_", "-")
                raise HeadError(
                    f"{self.checkpoint}: was trained with {flag} {theirs}, now {ours}: "
                    "give the same, or another -o"
                )

    def _layer_ids(self) -> tuple[int, ...]:
        kept = self.states.layers or default_layers(self.layers)
        if self.arguments.method == "eagle":
            return (kept[-1],)
        if self.arguments.layers:
            return tuple(self.arguments.layers)
        return (kept[0], kept[(len(kept) - 1) // 2], kept[-1])

    def _draft_ids(self) -> Tensor:
        counts = self.states.count_tokens(self.vocab)
        counts /= counts.sum()
        if self.arguments.corpus:
            # What was read may be little: the corpus knows rarer words.
            from transformers import AutoTokenizer  # takes seconds

            tokenizer = AutoTokenizer.from_pretrained(self.arguments.target)
            known = count_tokens(tokenizer, self.arguments.corpus, self.arguments.seed)
            counts[list(known)] += np.array(list(known.values())) / known.total()
        size = min(self.arguments.draft_vocab, self.vocab)
        # Stable: of tokens never expected, those that the tokenizer learned first.
        chosen = np.sort(np.argsort(-counts, kind="stable")[:size])
        covered = counts[chosen].sum() / counts.sum()
        self.log({"draft_vocab": size, "covers_expected_tokens": round(float(covered), 5)})
        return torch.from_numpy(chosen)

    def _scales(self) -> Tensor:
        batch = self.load(self.states.items[:8])
        sizes = batch.states.pow(2).mean(-1).sqrt()
        inside = torch.arange(sizes.shape[1], device=sizes.device) < batch.lengths[:, None]
        return sizes[inside].median(0).values.cpu()

    def log(self, row: dict[str, Any]) -> None:
        """Append a row to log.jsonl and print it."""
        line = json.dumps(row)
        with (self.folder / "log.jsonl").open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    def save(self) -> None:
        """Write the checkpoint; a run killed meanwhile keeps the one before."""
        scratch = self.checkpoint.with_suffix(".partial")
        torch.save(
            {
                "head": self.head.state_dict(),
                "mean": self.mean.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "draft_ids": self.draft_ids,
                "scales": self.scales,
                "layer_ids": list(self.layer_ids),
                "shards": self.states.shards,
                "arguments": {name: getattr(self.arguments, name) for name in FIXED},
                **{
                    name: getattr(self, name)
                    for name in ("step", "tokens", "epoch", "batch", "seconds", "next_report")
                },
            },
            scratch,
        )
        scratch.replace(self.checkpoint)

    def load(self, items: list[Item]) -> Batch:
        """The items where the head is; read through the target where only tokens were kept."""
        device = self.arguments.device
        batch = self.states.load(items, self.layer_ids).to(device)
        if not self.states.layers:
            if self.target is None:
                self.target = Target(self.arguments.target, device, Linear.compute)
            complete(batch, self.target, self.layer_ids)
        return batch

    def rate(self) -> float:
        """Warm-up, a plateau, and a linear end over the last part of the token budget."""
        warm = min(1.0, (self.step + 1) / self.arguments.warmup)
        left = (self.arguments.tokens - self.tokens) / self.arguments.tokens
        return self.arguments.rate * warm * min(1.0, max(left, 0.02) / self.arguments.decay)

    def losses(self, batch: Batch, random: torch.Generator) -> tuple[Tensor, dict[str, Any]]:
        """The weighted loss of all unrolled steps, and each step's own."""
        length = batch.tokens.shape[1] - 1
        positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        answers = positions >= batch.prompts[:, None] - 1
        drawn = torch.rand(answers.shape, generator=random).to(answers.device)
        wanted = answers | ((drawn < self.arguments.prompt_share) & (positions >= PREAMBLE))
        total = batch.states.new_zeros(())
        said: dict[str, Any] = {"loss": [], "agree": []}
        single = self.tokens < self.arguments.single_tokens
        steps = 1 if single else self.arguments.unroll
        for k, drafting in enumerate(unroll(self.head, batch, steps)):
            rows = shift(wanted, drafting.label, length) & drafting.inside
            if k:
                drawn = torch.rand(rows.shape, generator=random).to(rows.device)
                rows &= drawn < self.arguments.later_share
            ids = self.to_draft[shift(batch.top_ids, drafting.label, length)[rows]]
            probs = shift(batch.top_p, drafting.label, length)[rows]
            probs = (probs / probs.sum(-1, keepdim=True)).masked_fill(ids < 0, 0.0)
            count = max(len(ids), 1)
            loss, right = DraftLoss.apply(
                drafting.logits_in[rows],
                self.head.output_weight(),
                ids,
                probs,
                self.head.output_weight().requires_grad,
            )
            loss = loss / count
            said["loss"].append(loss.item())
            said["agree"].append(right.item() / count)
            if isinstance(self.head, EagleHead):
                truth = self.head.feature(shift(batch.states, drafting.label, length)[rows][None])
                far = torch.nn.functional.smooth_l1_loss(drafting.feature[rows], truth[0])
                loss = loss + self.arguments.regression * far
            total = total + self.arguments.fade**k * loss
        said["rows"] = int(
            (shift(wanted, 1, length) & (positions[1:] < batch.lengths[:, None])).sum()
        )
        return total, said

    def train(self) -> None:
        """Go on until the token budget is spent."""
        arguments = self.arguments
        saved_at = said_at = time.monotonic()
        recent: dict[str, list[Any]] = defaultdict(list)
        stopped: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
        while self.tokens < arguments.tokens:
            if self.batch == 0 and self.epoch:
                self.states = States(arguments.states)
            epoch = arrange(
                self.states.training(), arguments.batch_tokens, f"{arguments.seed}/{self.epoch}"
            )
            for number, items in enumerate(epoch):
                if number < self.batch:
                    continue
                began = time.monotonic()
                said = self.update(items)
                self.batch = number + 1
                self.seconds += time.monotonic() - began
                for name in ("loss", "agree"):
                    recent[name].append(said[name])
                now = time.monotonic()
                if now - said_at > arguments.say_every or self.tokens >= arguments.tokens:
                    said_at = now
                    row: dict[str, Any] = {
                        "step": self.step,
                        "tokens": self.tokens,
                        "epoch": self.epoch,
                        "tokens_per_s": round(self.tokens / self.seconds),
                    }
                    for name, values in recent.items():
                        # Unrolling may have begun since the last row.
                        values = [value for value in values if len(value) == len(values[-1])]
                        row[name] = [round(float(x), 4) for x in np.mean(values, 0)]
                    self.log(row)
                    recent.clear()
                if self.tokens >= self.next_report:
                    self.next_report *= 2
                    self.report()
                if stopped or now - saved_at > arguments.save_every:
                    self.save()
                    saved_at = time.monotonic()
                if stopped:
                    return
                if self.tokens >= arguments.tokens:
                    break
            else:
                self.epoch += 1
                self.batch = 0
        self.save()
        self.report()

    def update(self, items: list[Item]) -> dict[str, Any]:
        """One optimiser step."""
        random = torch.Generator().manual_seed(self.arguments.seed * 1_000_003 + self.step)
        batch = self.load(items)
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate()
        loss, said = self.losses(batch, random)
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        self.optimiser.step()
        self.step += 1
        self.tokens += int(batch.lengths.sum())
        keep = min(self.arguments.average, (self.step + 1) / (self.step + 10))
        with torch.no_grad():
            for mean, new in zip(self.mean.parameters(), self.head.parameters(), strict=True):
                mean.lerp_(new, 1 - keep)
        return said

    def report(self) -> None:
        """Log held-out acceptance of the averaged weights."""
        items = self.states.held_out()[: self.arguments.held_out]
        if not items:
            return
        batches = [items[first : first + 8] for first in range(0, len(items), 8)]
        loaded = (self.load(part) for part in batches)
        row = {"report_at_tokens": self.tokens, "step": self.step}
        row["corpus_tokens"] = sum(item.length for item in self.states.training())
        row.update(accept(self.mean, loaded, self.arguments.report_steps))
        self.log(row)


def evaluate(arguments: argparse.Namespace) -> dict[str, Any]:
    """Held-out acceptance of a saved head."""
    head = load_head(arguments.evaluate, arguments.target).to(arguments.device)
    states = States(arguments.states)
    items = states.held_out()[: arguments.held_out]
    target = None if states.layers else Target(arguments.target, arguments.device, Linear.compute)

    def batches() -> Iterator[Batch]:
        for first in range(0, len(items), 8):
            batch = states.load(items[first : first + 8], head.layer_ids).to(arguments.device)
            if target is not None:
                complete(batch, target, head.layer_ids)
            yield batch

    return accept(head, batches(), arguments.report_steps)


def main() -> int:
    """Run the command line; 2 and one line on standard error where the input is at fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=("eagle3", "eagle"), default="eagle3")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--states", type=Path, required=True, help="read_target.py's output")
    parser.add_argument("-o", "--output", type=Path, required=True, help="checkpoint and log")
    parser.add_argument("--export", type=Path, help="write the averaged head there and stop")
    parser.add_argument("--export-dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--evaluate", type=Path, help="report this saved head and stop")
    parser.add_argument("--tokens", type=int, default=8_000_000, help="to train on, repeats count")
    parser.add_argument("--unroll", type=int, default=4, help="drafting steps trained at once")
    parser.add_argument(
        "--single-tokens", type=int, default=0, help="train one step alone for so many tokens"
    )
    parser.add_argument("--fade", type=float, default=0.8, help="weight of each further step")
    parser.add_argument("--draft-vocab", type=int, default=8192)
    parser.add_argument("--corpus", type=Path, help="count its tokens too for the draft vocabulary")
    parser.add_argument("--layers", type=int, nargs=3, help="EAGLE-3's states, lowest first")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--warmup", type=int, default=100, help="steps")
    parser.add_argument("--decay", type=float, default=0.25, help="share of tokens it falls over")
    parser.add_argument("--average", type=float, default=0.998, help="of weights, per step")
    parser.add_argument("--regression", type=float, default=1.0, help="EAGLE: weight of features")
    parser.add_argument("--later-share", type=float, default=0.5, help="rows used behind step 0")
    parser.add_argument("--prompt-share", type=float, default=0.15, help="prompt positions used")
    parser.add_argument("--held-out", type=int, default=128, help="sequences in a report")
    parser.add_argument("--report-steps", type=int, default=4)
    parser.add_argument("--first-report", type=int, default=62_500, help="tokens; then doubled")
    parser.add_argument("--save-every", type=float, default=180.0, help="seconds")
    parser.add_argument("--say-every", type=float, default=60.0, help="seconds")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    Linear.compute = named.get(arguments.dtype) or fastest_dtype(arguments.device)
    try:
        if arguments.evaluate:
            print(json.dumps(evaluate(arguments)))
            return 0
        trainer = Trainer(arguments)
        if arguments.export:
            dtype = named[arguments.export_dtype]
            save_head(trainer.mean, arguments.target, arguments.export, dtype)
            print(f"{arguments.export}: {arguments.method} after {trainer.tokens} tokens")
            return 0
        trainer.train()
    except (CorpusError, HeadError, StatesError, TargetError) as error:
        print(f"train_heads: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
