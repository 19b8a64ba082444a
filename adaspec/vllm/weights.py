"""What a checkpoint's weights are called, from its index or headers: no weight is read."""

from __future__ import annotations

import json
from pathlib import Path

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_LONGEST_HEADER = 100_000_000
"""Bytes of a safetensors file's header: the format allows no more."""


def weight_names(model: str, revision: str | None = None) -> frozenset[str] | None:
    """The names of all weights; None where they are not on this disk, or in pickles alone."""
    folder = _folder(model, revision)
    if folder is None:
        return None
    try:
        for name in _INDEXES:
            if (folder / name).is_file():
                return frozenset(json.loads((folder / name).read_text("utf-8"))["weight_map"])
        files = sorted(folder.glob("*.safetensors"))
        return frozenset(name for file in files for name in _names_in(file)) if files else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # vLLM says what is wrong with weights that cannot be read


def _folder(model: str, revision: str | None) -> Path | None:
    """Where a model lies: a folder, or a hub id's in the hub's own cache."""
    if Path(model).is_dir():
        return Path(model)
    try:
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(model, "config.json", revision=revision)
    except Exception:  # of an id that is none, or a hub's client of another age
        return None
    return Path(config).parent if isinstance(config, str) else None


def _names_in(file: Path) -> set[str]:
    """Names in a safetensors file: eight bytes say how long the JSON is that follows them."""
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        if length > _LONGEST_HEADER:
            raise ValueError(f"{file}: not a safetensors file")
        return set(json.loads(content.read(length))) - {"__metadata__"}
