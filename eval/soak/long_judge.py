"""Says of every output of the long run whether it is what it must be."""

import re
from dataclasses import dataclass

from long_requests import REGEX
from tiny_models import CHARACTERS, SPECIAL, VOCABULARY

LOGPROB_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Output:
    """One output: its tokens, why it ended (None: it was given up), its log-probabilities."""

    tokens: list[int]
    reason: str | None
    logprobs: list[float] | None = None


def output_of(one):
    """An output as vLLM returns it."""
    tokens = list(one.token_ids)
    logprobs = None
    if one.logprobs:
        steps = list(one.logprobs)[: len(tokens)]
        logprobs = [step[token].logprob for step, token in zip(steps, tokens, strict=True)]
    return Output(tokens, one.finish_reason, logprobs)


def complaint(asked, expected, found):
    """What is wrong with a request's outputs; None if nothing is.

    `expected` is the output without speculation, for a greedy request; sampled outputs differ from
    run to run, and are held to what was asked.
    """
    if asked.abort_after is None and len(found) != asked.params.get("n", 1):
        return f"{len(found)} outputs instead of {asked.params.get('n', 1)}"
    for one in found:
        said = _unsound(asked, one) or (asked.greedy and _differs(asked, expected, one))
        if said:
            return said
    return None


def _differs(asked, expected, one):
    length = len(one.tokens)
    given_up = one.reason in (None, "abort")
    if given_up and asked.abort_after is None:
        return "it never ended"
    known = expected.tokens[:length] if given_up else expected.tokens
    if one.tokens != known:
        at = next(
            (at for at, (a, b) in enumerate(zip(one.tokens, known, strict=False)) if a != b),
            min(length, len(known)),
        )
        here, there = one.tokens[at : at + 4], known[at : at + 4]
        return f"differs from token {at} of {len(known)} on: {here} instead of {there}"
    if not given_up and one.reason != expected.reason:
        return f"ended by {one.reason} instead of {expected.reason}"
    if one.logprobs is not None and expected.logprobs is not None:
        worst = max(
            (abs(a - b) for a, b in zip(one.logprobs, expected.logprobs, strict=False)), default=0
        )
        if worst > LOGPROB_TOLERANCE:
            return f"a log-probability is off by {worst:.4f}"
    return None


def _unsound(asked, one):
    if len(one.tokens) > asked.params["max_tokens"]:
        return f"{len(one.tokens)} tokens are more than max_tokens"
    if not all(0 <= token < VOCABULARY for token in one.tokens):
        return "a token is outside the vocabulary"
    allowed = asked.params.get("allowed_token_ids")
    if allowed is not None and not set(one.tokens) <= set(allowed):
        return "a token was not allowed"
    if "regex" in asked.params and one.reason == "stop":
        text = "".join(_character(token) for token in one.tokens)
        if not re.fullmatch(REGEX, text):
            return f"{text!r} is not of the structure that was asked for"
    return None


def _character(token):
    at = token - len(SPECIAL)
    return CHARACTERS[at] if 0 <= at < len(CHARACTERS) else ""
