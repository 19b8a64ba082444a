"""Synthetic traces with known truth, to test evaluators against.

Output is fresh text (a sparse random walk over the vocabulary, so short matches exist and mislead)
with spans copied from earlier text (so a look-up really helps there). The neural drafter is right
by a known law: at every position, each further token is right independently, with the hit rate of
the request, which is its workload's easy or hard one. None of this imitates a real model.
"""

import zlib
from dataclasses import dataclass, replace

import numpy as np

from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import CONFIDENCES, Request
from adaspec.trace.writer import write_trace

NEURAL_CAP = 8
VOCABULARY = 32_000

_SEPARATION = 1.5
"""Distance, in standard deviations, between the scores of right and wrong drafted tokens."""
_SUCCESSORS = 6
"""Number of tokens that may follow a token in fresh text."""


@dataclass(frozen=True, slots=True)
class Workload:
    """How one workload behaves; tests may compare their results with each of these fields."""

    name: str
    prompt_tokens: tuple[int, int]
    """Least and greatest length of a prompt."""
    output_tokens: tuple[int, int]
    copied_share: float
    """Expected share of output tokens that repeat an earlier span; 0 never copies on purpose."""
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
    """Write the requests of `synthesize` as a trace."""
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
    prompt_len = int(rng.integers(*workload.prompt_tokens, endpoint=True))
    output_len = int(rng.integers(*workload.output_tokens, endpoint=True))
    text = _fresh(prompt_len, rng)
    _extend(text, prompt_len + output_len, workload, rng)
    output = np.array(text[prompt_len:], dtype=np.int32)
    hit = workload.hard_hit if rng.random() < workload.hard_share else workload.easy_hit
    accepted, drafted, confidences = _neural(output, hit, cap, rng)
    return Request(
        workload=workload.name,
        id=id,
        prompt_tokens=np.array(text[:prompt_len], dtype=np.int32),
        output_tokens=output,
        neural_accepted=accepted,
        drafted_tokens=drafted,
        confidences=confidences,
    )


def _fresh(length, rng, previous=None):
    """A walk in which each token has `_SUCCESSORS` possible followers, the first most likely."""
    token = int(rng.integers(VOCABULARY)) if previous is None else previous
    choices = np.minimum(rng.geometric(0.35, length), _SUCCESSORS).tolist()
    walk = []
    for choice in choices:
        token = (token * 7919 + choice * 104729) % VOCABULARY
        walk.append(token)
    return walk


def _extend(text, length, workload, rng):
    """Grow `text` to `length` by alternating fresh and copied spans, as the workload says."""
    share, span = workload.copied_share, workload.copied_span
    fresh_span = span * (1 - share) / share if share else float(length)
    while len(text) < length:
        fresh = min(int(rng.geometric(min(1.0, 1 / fresh_span))), length - len(text))
        text += _fresh(fresh, rng, text[-1])
        copied = min(int(rng.geometric(1 / span)), length - len(text)) if share else 0
        start = int(rng.integers(max(1, len(text) - copied)))
        text += text[start : start + copied]


def _neural(output, hit, cap, rng):
    """Accepted counts, tokens that are right so far, and three confidences of one normal score.

    Counts are geometric, cut at the cap and at the output's end; entry 0 is null.
    """
    length, offsets = len(output), np.arange(cap)
    run = np.logical_and.accumulate(rng.random((length, cap)) < hit, axis=1).sum(axis=1)
    accepted = np.minimum(run, length - np.arange(length)).astype(np.int16)
    follows = output[np.minimum(np.arange(length)[:, None] + offsets, length - 1)]
    # Adding 1..V-1 modulo V gives every token but the right one.
    wrong = (follows + rng.integers(1, VOCABULARY, follows.shape)) % VOCABULARY
    right = offsets < accepted[:, None]
    drafted = np.where(right, follows, wrong).astype(np.int32)
    score = rng.standard_normal(right.shape) + np.where(right, 0.5, -0.5) * _SEPARATION
    logprob = -np.logaddexp(0, -score)
    confidences = np.stack([logprob, np.exp(logprob), -logprob], axis=-1).astype(np.float32)
    accepted[:1], drafted[:1], confidences[:1] = -1, -1, np.nan
    return accepted, drafted, confidences
