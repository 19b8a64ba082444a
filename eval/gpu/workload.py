"""What engines are asked: recorded requests, cut to what fits beside other engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from engines import CHECKOUT, tiny_models

from adaspec.evaluate.selection import Wanted, select
from adaspec.policy.protocol import load_policy
from adaspec.trace.schema import Request


@dataclass(frozen=True)
class Order:
    """The requests of one load in their order, the same for every method."""

    ramp: Sequence[tuple[int, int]]
    """Those at the beginning, which do not count, and how many tokens each emits: they end one by
    one, so that later ones enter one by one, as with a server that has been busy for long."""
    counted: Sequence[int]


def prompts_of(settings: dict[str, Any]) -> list[list[int]]:
    """Prompts for the tiny models."""
    tiny_models(Path(settings["cache"]))
    from tiny_models import document, ids_of

    return [ids_of(document(at, 3)) for at in range(settings["requests"])]


def recorded(settings: dict[str, Any]) -> list[Request]:
    """Recorded requests that a policy never saw, in an order of no meaning."""
    manifest = load_policy(settings["policy"]).manifest
    seen = frozenset(manifest.training_requests if manifest else ())
    chosen = select([str(CHECKOUT / settings["traces"])], Wanted(seen=seen)).requests
    most = settings["prompt_tokens"]
    chosen = tuple(each for each in chosen if len(each.prompt_tokens) <= most)
    order = np.random.default_rng(0).permutation(len(chosen))[: settings["requests"]]
    return [shortened(chosen[at], settings["output_tokens"]) for at in order]


def shortened(request: Request, tokens: int) -> Request:
    """A recorded request of which the output ends after so many tokens at the latest.

    Of what a head drafted there are counts of right tokens alone.
    """
    accepted = request.neural_accepted
    return replace(
        request,
        output_tokens=request.output_tokens[:tokens],
        neural_accepted=None if accepted is None else accepted[:tokens],
        drafted_tokens=None,
        confidences=None,
    )


def draw(outputs: Sequence[int], load: int, seed: int, counted: int) -> Order:
    """Requests of a load, given how many tokens each emits: whole shuffled passes over them."""
    generator = np.random.default_rng((seed, load))
    count = -(-(counted + load) // len(outputs))
    order = np.concatenate([generator.permutation(len(outputs)) for _ in range(count)]).tolist()
    shares = generator.uniform(size=load)
    lengths = [max(1, int(share * outputs[at])) for share, at in zip(shares, order, strict=False)]
    ramp = list(zip(order[:load], lengths, strict=True))
    return Order(ramp, order[load : load + counted])
