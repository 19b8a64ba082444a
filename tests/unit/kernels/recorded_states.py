"""Requests of the reference pair's recorded traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from adaspec.kernels.batch import Batch
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import Request

TRACES = Path(__file__).resolve().parents[3] / "eval" / "traces" / "reference-pair"


def recorded_requests(count: int) -> list[Request]:
    """So many of them, of all workloads."""
    if not TRACES.is_dir():
        pytest.skip(f"no recorded traces at {TRACES}")
    requests = [each for each in TraceReader(TRACES).requests() if len(each.output_tokens) > 1]
    chosen = np.random.default_rng(8).permutation(len(requests))[:count]
    return [requests[at] for at in chosen]


class Recorded:
    """The requests as an engine has them, at any place in their outputs."""

    def __init__(self, requests: list[Request], device: torch.device) -> None:
        self._requests, self._device = requests, device
        longest = max(len(each.prompt_tokens) + len(each.output_tokens) for each in requests)
        self._tokens = np.zeros((len(requests), longest), np.int32)
        for slot, each in enumerate(requests):
            text = np.concatenate((each.prompt_tokens, each.output_tokens))
            self._tokens[slot, : len(text)] = text

    def state(
        self, rng: np.random.Generator, forwards: int
    ) -> tuple[Batch, list[tuple[torch.Tensor, torch.Tensor]]]:
        """A batch in which each request has come somewhere, and what was drafted there."""
        places = [int(rng.integers(1, len(each.output_tokens))) for each in self._requests]
        prompt = np.array([len(each.prompt_tokens) for each in self._requests], np.int32)
        ones = np.ones(len(places), np.int32)
        columns = (np.arange(len(places)), self._tokens, prompt + np.array(places, np.int32))
        batch = Batch(
            *(
                torch.from_numpy(each).to(self._device)
                for each in (*columns, prompt, ones > 0, ones, 0 * ones)
            )
        )
        drafts = []
        for depth in range(forwards):
            token = [
                int(each.drafted_tokens[place, depth])
                for each, place in zip(self._requests, places, strict=True)
            ]
            said = np.stack(
                [
                    each.confidences[place, depth]
                    for each, place in zip(self._requests, places, strict=True)
                ]
            )
            drafts.append((torch.tensor(token), torch.from_numpy(said.astype(np.float32))))
        return batch, drafts
