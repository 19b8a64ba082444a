"""Counts what is compiled or captured as an engine runs: no such step is like the others."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from numba.core import event
from torch._dynamo.callback import callback_handler


class Compilations(event.Listener):
    """Counts, by kind, what this process has compiled or captured since it began to look."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        event.register("numba:compile", self)
        callback_handler.register_start_callback(lambda *_: self._count("torch"))
        enter = torch.cuda.graph.__enter__

        def enter_and_count(graph: Any) -> None:
            self._count("graph")
            enter(graph)

        torch.cuda.graph.__enter__ = enter_and_count  # type: ignore[method-assign]
        self._watch_triton()

    def total(self) -> int:
        """All of them."""
        return self.counts.total()

    def on_start(self, _: Any) -> None:
        """Numba compiles a function."""
        self._count("numba")

    def on_end(self, _: Any) -> None:
        """It has done so."""

    def _count(self, kind: str) -> None:
        self.counts[kind] += 1

    def _watch_triton(self) -> None:
        from triton import knobs

        before = knobs.compilation.listener

        def count(*, cache_hit: bool, **named: Any) -> None:
            self.counts["triton"] += not cache_hit
            if before is not None:
                before(cache_hit=cache_hit, **named)

        knobs.compilation.listener = count
