"""Synthetic traces with known truth, to test evaluators against.

Output is fresh text (a sparse random walk over the vocabulary, so short matches exist and mislead)
with spans copied from earlier text (so a look-up really helps there). At every position, each
further token of the neural drafter is right independently, with the hit rate of the request, which
is its workload's easy or hard one. None of this imitates a real model.
"""

import zlib
from dataclasses import dataclass, replace

import numpy as np

from adaspec.trace.schema import CONFIDENCES, Manifest, Request
from adaspec.trace.writer import write_trace

NEURAL_CAP = 8
VOCABULARY = 32_000


@dataclass(frozen=True)
class Workload:
    name: str
    prompt_tokens: tuple[int, int]
    """Least and greatest length of a prompt."""
    output_tokens: tuple[int, int]
    copied_share: float
    """Expected share of output tokens that repeat an earlier span."""
    copied_span: float
    """Mean length of a copied span."""
    hard_share: float
    """Probability that a request is a hard one."""
    easy_hit: float
    hard_hit: float


TINY = (
    Workload("edits", (30, 60), (20, 50), 0.6, 12.0, 0.3, 0.8, 0.3),
    Workload("talk", (20, 40), (20, 50), 0.05, 5.0, 0.5, 0.75, 0.35),
)
"""Code edits with much copying, and chat."""


def synthesize(seed=0, workloads=TINY, requests_per_workload=60, neural_cap=NEURAL_CAP):
    """Requests, workload by workload, each of which depends only on `seed`, workload and number."""
    for workload in workloads:
        for number in range(requests_per_workload):
            entropy = [seed, zlib.crc32(workload.name.encode()), number]
            yield _request(workload, f"{seed}-{number}", np.random.default_rng(entropy), neural_cap)


def write_synthetic(path, *asked, neural_cap=NEURAL_CAP, **named):
    manifest = Manifest(
        target="synthetic",
        drafter="synthetic",
        neural_cap=neural_cap,
        draft_cap=neural_cap,
        confidences=CONFIDENCES,
        sampling={"temperature": 0},
    )
    write_trace(path, synthesize(*asked, neural_cap=neural_cap, **named), manifest=manifest)


def without_drafts(request):
    """The request as if no drafter had run."""
    return replace(request, neural_accepted=None, drafted_tokens=None, confidences=None)


def _request(workload, id, rng, cap):
    spans = workload.prompt_tokens, workload.output_tokens
    prompt, length = (int(rng.integers(*each, endpoint=True)) for each in spans)
    text = _text(prompt, prompt + length, workload, rng)
    output = np.array(text[prompt:], np.int32)
    hit = workload.hard_hit if rng.random() < workload.hard_share else workload.easy_hit
    drafts = _drafts(output, hit, cap, rng)
    return Request(workload.name, id, np.array(text[:prompt], np.int32), output, *drafts)


def _text(prompt, length, workload, rng):
    """A fresh prompt, and fresh and copied spans by turns, as the workload says."""
    share, span = workload.copied_share, workload.copied_span

    def walk(count, token):
        # Each token has six followers, the first of them most likely.
        for choice in np.minimum(rng.geometric(0.35, count), 6).tolist():
            token = (token * 7919 + choice * 104729) % VOCABULARY
            text.append(token)

    def span_of(mean):
        return min(int(rng.geometric(1 / mean)), length - len(text))

    text = []
    walk(prompt, int(rng.integers(VOCABULARY)))
    while len(text) < length:
        walk(span_of(max(span * (1 - share) / share, 1.0)), text[-1])
        copied = span_of(span)
        start = int(rng.integers(max(1, len(text) - copied)))
        text += text[start : start + copied]
    return text


def _drafts(output, hit, cap, rng):
    """Accepted counts, tokens that are right so far, and three confidences of one normal score.

    Counts are geometric, cut at the cap and at the output's end; entry 0 is null.
    """
    places, length = np.arange(len(output))[:, None], len(output)
    run = np.logical_and.accumulate(rng.random((length, cap)) < hit, axis=1).sum(axis=1)
    accepted = np.minimum(run, length - places[:, 0]).astype(np.int16)
    right = np.arange(cap) < accepted[:, None]
    follows = output[np.minimum(places + np.arange(cap), length - 1)]
    # Adding 1..V-1 modulo V gives every token but the right one.
    wrong = (follows + rng.integers(1, VOCABULARY, right.shape)) % VOCABULARY
    drafted = np.where(right, follows, wrong).astype(np.int32)
    score = rng.standard_normal(right.shape) + np.where(right, 0.75, -0.75)
    logprob = -np.logaddexp(0, -score)
    confidences = np.stack([logprob, np.exp(logprob), -logprob], axis=-1).astype(np.float32)
    accepted[:1], drafted[:1], confidences[:1] = -1, -1, np.nan
    return accepted, drafted, confidences


def request_of(id="0", workload="chat", **changes):
    """A request of 8 output tokens, 2 of 3 drafted tokens accepted at position 2."""
    accepted = np.zeros(8, np.int16)
    accepted[0], accepted[2] = -1, 2
    drafted = np.full((8, 4), -1, np.int32)
    drafted[2, :3] = [102, 103, 7]
    confidences = np.full((8, 4, 3), np.nan, np.float32)
    confidences[2, :3] = [[-0.1, 0.8, 0.2], [-0.5, 0.4, np.nan], [-2.0, 0.1, 1.5]]
    fields = {
        "prompt_tokens": np.arange(5, dtype=np.int32),
        "output_tokens": np.arange(100, 108, dtype=np.int32),
        "neural_accepted": accepted,
        "drafted_tokens": drafted,
        "confidences": confidences,
    }
    return Request(workload, id, **(fields | changes))
