"""What a live policy would have logged of requests whose truth is known."""

import numpy as np

from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import LoggedStep
from adaspec.trace.writer import TraceWriter


def logged_steps(request, lengths, rng, text=True, further=0, **changes):
    """Neural drafts of lengths drawn from `lengths` (length to probability), 0 drafting nothing.

    A function is asked for them with what would be accepted. The drafter goes on for `further`
    tokens that nobody verifies.
    """
    output, prompt = request.output_tokens, request.prompt_tokens
    position = 1
    step = 0
    while position < len(output):
        right = int(request.neural_accepted[position])
        chances = lengths(right) if callable(lengths) else lengths
        drafted = int(rng.choice(list(chances), p=list(chances.values())))
        accepted = min(right, drafted)
        # What the drafter would say: the text as far as it is right, and then another token.
        said = output[position : position + drafted + further].copy()
        said[right : right + 1] += 1
        values = {
            "draft_len": drafted,
            "accepted": accepted,
            "source": "neural" if drafted else "none",
            "position": position,
            "context_tokens": len(prompt) + position,
            "neural_len": drafted,
            "ngram_len": 0,
            "output_len": len(output),
            "unverified_tokens": said[drafted:] if further else None,
            "prompt_tokens": prompt if text and step == 0 else None,
            "output_tokens": output if text and step == 0 else None,
        }
        yield LoggedStep(request.workload, request.id, step, **(values | changes))
        step += 1
        position += accepted + 1


def write_logged(path, requests, lengths, seed=0, vocabulary_hash=None, **more):
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
            for step in logged_steps(request, lengths, rng, **more):
                writer.add(step)
    return path
