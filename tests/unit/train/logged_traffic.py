"""What a live policy would have logged of requests whose truth is known."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import LoggedStep, Request
from adaspec.trace.writer import TraceWriter


def logged_steps(
    request: Request, lengths: dict[int, float], rng: np.random.Generator, text: bool = True
) -> Iterator[LoggedStep]:
    """Neural drafts of lengths drawn from `lengths` (length to probability), 0 drafting nothing."""
    output, prompt = request.output_tokens, request.prompt_tokens
    accepted_at = request.neural_accepted
    assert accepted_at is not None
    position = 1
    step = 0
    while position < len(output):
        drafted = int(rng.choice(list(lengths), p=list(lengths.values())))
        accepted = min(int(accepted_at[position]), drafted)
        yield LoggedStep(
            request.workload,
            request.id,
            step,
            draft_len=drafted,
            accepted=accepted,
            source="neural" if drafted else "none",
            position=position,
            context_tokens=len(prompt) + position,
            neural_len=drafted,
            ngram_len=0,
            output_len=len(output),
            prompt_tokens=prompt if text and step == 0 else None,
            output_tokens=output if text and step == 0 else None,
        )
        step += 1
        position += accepted + 1


def write_logged(path, requests, lengths, seed=0, text=True, vocabulary_hash=None):
    rng = np.random.default_rng(seed)
    manifest = Manifest(
        kind="logged",
        target="a/target",
        drafter="a/head",
        vocabulary_hash=vocabulary_hash,
        synthetic=True,
    )
    with TraceWriter(path, manifest) as writer:
        for request in requests:
            for step in logged_steps(request, lengths, rng, text):
                writer.add(step)
    return path
