"""Boosters in LightGBM's own words, for audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import lightgbm

_VOLATILE = "[num_threads: "


def model_text(boosters: Mapping[str, Mapping[str, lightgbm.Booster]]) -> str:
    """Every booster's own text under a line with its name; how many threads grew it is left out."""
    parts = []
    for group, heads in sorted(boosters.items()):
        for head, booster in heads.items():
            lines = booster.model_to_string(num_iteration=-1).splitlines()
            text = "\n".join(line for line in lines if not line.startswith(_VOLATILE))
            parts.append(f"==== {group}: {head} ====\n{text}\n")
    return "".join(parts)
