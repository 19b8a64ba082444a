"""The text of token ids, where the traces' own tokenizer lies on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from adaspec.trace.identity import vocabulary_hash

TextOf = Callable[[int], str]


def text_of_tokens(tokenizer: str | None, expected_hash: str | None) -> TextOf | None:
    """What tells a token's text, or None if that cannot be told for certain.

    `tokenizer` is a folder, or a hub id whose tokenizer.json was downloaded before; nothing is
    downloaded. It must be the very one that the traces name by the hash of its vocabulary.
    """
    if tokenizer is None or expected_hash is None:
        return None
    try:
        from huggingface_hub import try_to_load_from_cache
        from tokenizers import Tokenizer
    except ImportError:
        return None
    name = "tokenizer.json"
    try:
        here = Path(tokenizer) / name
        found = here if here.is_file() else try_to_load_from_cache(tokenizer, name)
        if not isinstance(found, str | Path):
            return None
        known = Tokenizer.from_file(str(found))
    except Exception:  # tokenizers raises just this; a report is no worse for showing ids
        return None
    if vocabulary_hash(known.get_vocab(with_added_tokens=True)) != expected_hash:
        return None

    def text_of(token: int) -> str:
        return str(known.decode([token], skip_special_tokens=False))

    return text_of
