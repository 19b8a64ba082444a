"""What `read_target.py` kept, as batches: sequences in shards, training and held-out ones apart."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from target import Target
from torch import Tensor


class StatesError(Exception):
    """The folder of shards is missing something."""


@dataclass(frozen=True)
class Item:
    """A sequence in a shard: `length` tokens with states, the first `prompt` of them given."""

    shard: str
    kind: str
    held_out: bool
    greedy: bool
    start: int
    length: int
    prompt: int


@dataclass
class Batch:
    """Right-padded sequences. `top_ids[:, i]` are the target's best tokens behind position i.

    Where only tokens were kept, the states and best tokens are empty until `complete` reads them.
    """

    tokens: Tensor
    states: Tensor
    top_ids: Tensor
    top_p: Tensor
    lengths: Tensor
    prompts: Tensor
    kinds: list[str]

    def to(self, device: str) -> Batch:
        """The batch, moved to a device."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
        return self


class States:
    """The shards that were complete when the folder was opened."""

    def __init__(self, folder: Path, shards: list[str] | None = None) -> None:
        """Open a folder; `shards` limits it to those, in that order."""
        self.folder = folder
        self.shards = shards or sorted(path.stem for path in folder.glob("*-*.json"))
        if not self.shards:
            raise StatesError(f"{folder}: holds no shards: run read_target.py first")
        self.items: list[Item] = []
        self.layers: tuple[int, ...] = ()
        for shard in self.shards:
            path = folder / f"{shard}.json"
            if not path.is_file():
                raise StatesError(f"{path}: gone, but the training used it: restore it or restart")
            meta = json.loads(path.read_text())
            if shard != self.shards[0] and tuple(meta["layers"]) != self.layers:
                raise StatesError(
                    f"{path}: keeps layers {meta['layers']}, others {list(self.layers)}: "
                    "read everything with the same --layers or --tokens-only"
                )
            self.layers = tuple(meta["layers"])
            for sequence in meta["sequences"]:
                self.items.append(
                    Item(
                        shard,
                        sequence["kind"],
                        sequence["held_out"],
                        sequence["temperature"] == 0,
                        sequence["start"],
                        sequence["length"],
                        sequence["prompt"],
                    )
                )
        self._open: dict[tuple[str, str], np.ndarray] = {}

    def column(self, shard: str, name: str) -> np.ndarray:
        """A shard's column, mapped into memory."""
        key = (shard, name)
        if key not in self._open:
            self._open[key] = np.load(self.folder / f"{shard}.{name}.npy", mmap_mode="r")
        return self._open[key]

    def training(self) -> list[Item]:
        """What may be trained on."""
        return [item for item in self.items if not item.held_out]

    def held_out(self) -> list[Item]:
        """What may not: whole prompts, answered greedily."""
        return [item for item in self.items if item.held_out]

    def count_tokens(self, vocab: int) -> np.ndarray:
        """How often the target would say each token over the training items, in expectation."""
        counts = np.zeros(vocab)
        for shard in self.shards:
            if not self.layers:
                np.add.at(counts, np.asarray(self.column(shard, "tokens")), 1.0)
                continue
            ids, p = self.column(shard, "top_ids"), self.column(shard, "top_p")
            for item in (item for item in self.items if item.shard == shard and not item.held_out):
                rows = slice(item.start, item.start + item.length)
                # The answers count in full, what it expected inside the prompts a tenth.
                weight = np.where(np.arange(item.length) < item.prompt - 1, 0.1, 1.0)[:, None]
                mass = p[rows].astype(np.float64) * weight
                np.add.at(counts, ids[rows].ravel(), mass.ravel())
        return counts

    def load(self, items: list[Item], layer_ids: tuple[int, ...]) -> Batch:
        """Read items as one batch, with the states of `layer_ids` in that order."""
        missing = [layer for layer in layer_ids if layer not in self.layers]
        if missing and self.layers:
            raise StatesError(f"{self.folder}: keeps layers {self.layers}, not {missing}")
        where = [self.layers.index(layer) for layer in layer_ids] if self.layers else []
        width = max(item.length for item in items)
        names = ("tokens", "states", "top_ids", "top_p") if self.layers else ("tokens",)
        rows: dict[str, list[Any]] = {name: [] for name in names}
        for item in items:
            for name, column in rows.items():
                part = self.column(item.shard, name)[item.start : item.start + item.length]
                if name == "states":
                    part = part[:, where]
                pad = [(0, width - item.length)] + [(0, 0)] * (part.ndim - 1)
                column.append(np.pad(part, pad))
        nothing = torch.zeros(0)
        stacked = dict.fromkeys(("states", "top_ids", "top_p"), nothing)
        stacked |= {name: torch.from_numpy(np.stack(column)) for name, column in rows.items()}
        return Batch(
            stacked["tokens"].long(),
            stacked["states"].float(),
            stacked["top_ids"].long(),
            stacked["top_p"].float(),
            torch.tensor([item.length for item in items]),
            torch.tensor([item.prompt for item in items]),
            [item.kind for item in items],
        )


def complete(batch: Batch, target: Target, layer_ids: tuple[int, ...]) -> None:
    """Read a batch of tokens through the target for its states and best tokens."""
    if batch.states.numel():
        return
    states, final = target.prefill(batch.tokens, batch.lengths, None, tuple(sorted(layer_ids)))
    ids, p = target.best(final)
    batch.states, batch.top_ids, batch.top_p = states.float(), ids.long(), p.float()


def arrange(items: list[Item], batch_tokens: int, seed: str) -> Iterator[list[Item]]:
    """One epoch: items shuffled, then grouped with ones of like length into batches, shuffled."""
    pick = random.Random(seed)
    items = list(items)
    pick.shuffle(items)
    batches: list[list[Item]] = []
    for first in range(0, len(items), 256):
        pool = sorted(items[first : first + 256], key=lambda item: item.length)
        batch: list[Item] = []
        for item in pool:
            if batch and item.length * (len(batch) + 1) > batch_tokens:
                batches.append(batch)
                batch = []
            batch.append(item)
        if batch:
            batches.append(batch)
    pick.shuffle(batches)
    yield from batches
