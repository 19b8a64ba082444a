"""Makes an engine emit recorded outputs, and its head draft what was recorded, at real step times.

The target's weights are random, so what it would say is of no use. The token that was recorded at a
place of the text is made the likeliest there before vLLM verifies; what the recorded head drafted
at a position takes the place of what this one does. All else runs as ever: the same forwards,
kernels and schedulers. For benchmarks alone, in a process of their own.

Requests are named INDEX-ANYTHING, by the index of their recording; others are left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaspec.trace.schema import Request

COUNTED = 8
"""So many tokens a head drafts: recordings have counts of right ones."""


class Recordings:
    """Texts and drafts of recorded requests, as tensors of one device."""

    def __init__(self, requests: Sequence[Request]) -> None:
        longest = max(len(each.prompt_tokens) + len(each.output_tokens) for each in requests)
        outputs = max(len(each.output_tokens) for each in requests)
        text = np.full((len(requests), longest), -1, np.int64)
        drafts = np.full((len(requests), outputs, COUNTED), -1, np.int64)
        for row, request in enumerate(requests):
            prompt, output = request.prompt_tokens, request.output_tokens
            text[row, len(prompt) : len(prompt) + len(output)] = output
            drafts[row, : len(output)] = drafts_of(request)
        self.text, self.drafts = torch.from_numpy(text), torch.from_numpy(drafts)
        self.prompt_tokens = torch.tensor([len(each.prompt_tokens) for each in requests])

    def on(self, device: torch.device) -> Self:
        """Move to a device."""
        for name, tensor in vars(self).items():
            setattr(self, name, tensor.to(device))
        return self

    def token_at(self, which: Tensor, place: Tensor) -> Tensor:
        """The output token at each place of recorded texts; -1 in prompts and beyond the end."""
        row, column = which.clamp(min=0), place.clamp(max=self.text.shape[1] - 1)
        known = (which >= 0) & (place < self.text.shape[1])
        return self.text[row, column].where(known, -1)

    def draft_at(self, which: Tensor, known: Tensor, depth: Tensor) -> Tensor:
        """What the head drafted as its token number `depth` where so many tokens were known.

        Returns (rows,) tokens, -1 where none was recorded.
        """
        row = which.clamp(min=0)
        position = known - self.prompt_tokens[row]
        _, positions, cap = self.drafts.shape
        recorded = (which >= 0) & (position >= 0) & (position < positions) & (depth < cap)
        place = row, position.clamp(0, positions - 1), depth.clamp(max=cap - 1)
        return self.drafts[place].where(recorded, -1)


def drafts_of(request: Request) -> NDArray[np.int64]:
    """(positions, COUNTED) what a head drafted; -1 beyond the output.

    So many right tokens as were counted, and then wrong ones: what would have been emitted in their
    place is not known, and nobody asks.
    """
    output, accepted = request.output_tokens.astype(np.int64), request.neural_accepted
    assert accepted is not None
    depth = np.arange(COUNTED)
    place = np.arange(len(output))[:, None] + depth
    right = output[np.minimum(place, len(output) - 1)]
    # Another token of the vocabulary, whose size is even.
    drafts = np.where(depth < accepted[: len(output), None], right, right ^ 1)
    return np.where(place < len(output), drafts, -1)


def make_likeliest(logits: Tensor, tokens: Tensor) -> None:
    """Make a token the likeliest of each row of logits; none where -1."""
    place = tokens.clamp(min=0)[:, None]
    most = torch.full_like(place, torch.finfo(logits.dtype).max, dtype=logits.dtype)
    logits.scatter_(1, place, most.where(tokens[:, None] >= 0, logits.gather(1, place)))


class Forcing:
    """Forces the engines that start while it is installed."""

    def __init__(self, recordings: Recordings) -> None:
        self.recordings = recordings

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Force the engines that start meanwhile."""
        with ExitStack() as replaced:
            self._install(replaced)
            yield

    def _install(self, replaced: ExitStack) -> None:
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner
        from vllm.v1.worker.gpu.sample.sampler import Sampler
        from vllm.v1.worker.gpu.states import RequestState

        recordings = self.recordings
        # What stands before it differs between versions of vLLM.
        place = list(signature(Sampler.apply_sampling_params).parameters).index("pos") - 3

        def init(original: Any, runner: Any, *args: Any, **named: Any) -> None:
            original(runner, *args, **named)
            recordings.on(runner.device)
            states = runner.req_states
            states.recording = torch.full((states.max_num_reqs,), -1, device=runner.device)
            if hasattr(runner.speculator, "sample_draft"):
                self._take_over(runner.speculator, states)

        def add_request(original: Any, states: Any, req_id: str, *args: Any, **named: Any) -> None:
            original(states, req_id, *args, **named)
            slot = states.req_id_to_index[req_id]
            states.recording[slot : slot + 1].fill_(_recording_of(req_id))

        def apply_sampling_params(
            original: Any, sampler: Any, logits: Tensor, rows: Tensor, *args: Any, **named: Any
        ) -> Tensor:
            processed: Tensor = original(sampler, logits, rows, *args, **named)
            position = named["pos"] if "pos" in named else args[place]
            which = sampler.req_states.recording[rows.long().clamp(min=0)]
            make_likeliest(processed, recordings.token_at(which, position + 1))
            return processed

        replace(replaced, GPUModelRunner, "__init__", init)
        replace(replaced, RequestState, "add_request", add_request)
        replace(replaced, Sampler, "apply_sampling_params", apply_sampling_params)

    def _take_over(self, speculator: Any, states: Any) -> None:
        """Make a speculator of V2 draft what was recorded."""
        base, recordings = type(speculator), self.recordings

        def sample_draft(
            self: Any,
            hidden_states: Tensor,
            positions: Tensor,
            rows: Tensor,
            temperature: Tensor,
            seeds: Tensor,
            draft_step: Tensor,
            *args: Any,
            **named: Any,
        ) -> Tensor:
            given = hidden_states, positions, rows, temperature, seeds, draft_step, *args
            drafted: Tensor = base.sample_draft(self, *given, **named)
            slots = rows[: len(hidden_states)].long().clamp(min=0)
            known = states.total_len.gpu[slots].long()
            depth = draft_step.reshape(1).long().expand(len(slots))
            tokens = recordings.draft_at(states.recording[slots], known, depth)
            return tokens.where(tokens >= 0, drafted)

        # A class with one base has the layout of the object that it is given to.
        members = {"sample_draft": sample_draft}
        speculator.__class__ = type(f"Forced{base.__name__}", (base,), members)


def replace(replaced: ExitStack, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replace a function by `replacement(original, ...)` until the stack is closed."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **named: Any) -> Any:
        return replacement(original, *args, **named)

    setattr(owner, name, call)
    replaced.callback(setattr, owner, name, original)


def _recording_of(request: str) -> int:
    index = request.partition("-")[0]
    return int(index) if index.isdecimal() else -1
