"""The look-ups that `adaspec bench lookup` compares, each behind the same three calls."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adaspec.draft import NgramIndex

Ints = NDArray[np.int32]
MIN_N, MAX_N, MOST_DRAFTED = 3, 7, 8
TREE_DEPTH = 24


class LookupSystem(Protocol):
    """Holds the contexts of one batch and drafts for all of them each step."""

    def start(self, requests: int, most_tokens: int) -> None:
        """Make room for so many requests of at most so many tokens."""

    def admit(self, prompt: Ints) -> None:
        """Take in the next request's prompt."""

    def step(self, column: Ints) -> None:
        """Append one token to every context and look up what follows."""

    def nbytes(self) -> int | None:
        """Bytes held for all contexts, where the system can say."""


class OurIndex:
    """adaspec's n-gram index: append and look-up, all facts."""

    def __init__(self) -> None:
        self._index = NgramIndex()

    def start(self, requests: int, most_tokens: int) -> None:
        """Number the requests as `open` will."""
        self._slots = np.arange(requests)
        self._ones = np.ones(requests, np.int64)

    def admit(self, prompt: Ints) -> None:
        """Index the prompt."""
        self._index.open(prompt)

    def step(self, column: Ints) -> None:
        """Append and look up."""
        self._index.extend(self._slots, column, self._ones)
        self._index.lookup(self._slots)

    def nbytes(self) -> int:
        """Everything the index holds."""
        return self._index.nbytes()


class VllmProposer:
    """vLLM's NgramProposer (matches of 3 to 7 tokens): it scans every context each step."""

    def __init__(self, proposer_class: Any) -> None:
        self._class = proposer_class

    def start(self, requests: int, most_tokens: int) -> None:
        """Lay out an input batch as vLLM does."""
        most = most_tokens + MOST_DRAFTED
        self._proposer = self._class(
            SimpleNamespace(
                speculative_config=SimpleNamespace(
                    prompt_lookup_min=MIN_N,
                    prompt_lookup_max=MAX_N,
                    num_speculative_tokens=MOST_DRAFTED,
                ),
                model_config=SimpleNamespace(max_model_len=most),
                scheduler_config=SimpleNamespace(max_num_seqs=requests),
                parallel_config=SimpleNamespace(tensor_parallel_size=1),
            )
        )
        self._tokens = np.zeros((requests, most), np.int32)
        self._known = np.zeros(requests, np.int32)
        self._admitted = 0

    def admit(self, prompt: Ints) -> None:
        """Copy the prompt; there is nothing to index."""
        self._tokens[self._admitted, : len(prompt)] = prompt
        self._known[self._admitted] = len(prompt)
        self._admitted += 1

    def step(self, column: Ints) -> None:
        """Append and propose."""
        self._tokens[np.arange(len(column)), self._known] = column
        self._known += 1
        sampled = [[token] for token in column.tolist()]
        self._proposer.propose(MOST_DRAFTED, sampled, self._known, self._tokens)

    def nbytes(self) -> int:
        """The token ids, which vLLM keeps anyway."""
        return self._tokens.nbytes


class ArcticCache:
    """arctic-inference's suffix cache, per-request trees only, called as vLLM calls it."""

    def __init__(self, cache_class: Any) -> None:
        self._cache = cache_class(max_tree_depth=TREE_DEPTH, max_cached_requests=0)

    def start(self, requests: int, most_tokens: int) -> None:
        """Keep the contexts' ends, from which patterns are cut."""
        self._contexts = np.zeros((requests, most_tokens), np.int32)
        self._known = 0
        self._admitted = 0

    def admit(self, prompt: Ints) -> None:
        """Build the prompt's suffix tree."""
        self._contexts[self._admitted, : len(prompt)] = prompt
        self._known = len(prompt)
        self._cache.start_request(self._admitted, prompt)
        self._admitted += 1

    def step(self, column: Ints) -> None:
        """Append and speculate, request by request: it has no batch call."""
        self._contexts[:, self._known] = column
        self._known += 1
        first = max(0, self._known - TREE_DEPTH)
        for row, token in enumerate(column.tolist()):
            self._cache.add_active_response(row, [token])
            self._cache.speculate(
                row, self._contexts[row, first : self._known], max_spec_tokens=MOST_DRAFTED
            )

    def nbytes(self) -> None:
        """It does not say."""


def installed_systems() -> tuple[dict[str, Callable[[], LookupSystem]], dict[str, str]]:
    """(how to make each system that is here, why each other one is not)."""
    here: dict[str, Callable[[], LookupSystem]] = {"adaspec": OurIndex}
    missing: dict[str, str] = {}
    try:
        proposer = import_module("vllm.v1.spec_decode.ngram_proposer").NgramProposer
        here["vllm"] = lambda: VllmProposer(proposer)
    except Exception as error:  # a half-installed vLLM fails in many ways, none of them ours
        missing["vllm"] = f"vLLM's NgramProposer cannot be imported: {_first_line(error)}"
    try:
        cache = import_module("arctic_inference.suffix_decoding").SuffixDecodingCache
        here["arctic"] = lambda: ArcticCache(cache)
    except Exception as error:  # the same: a foreign compiled extension
        missing["arctic"] = f"arctic-inference cannot be imported: {_first_line(error)}"
    return here, missing


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
