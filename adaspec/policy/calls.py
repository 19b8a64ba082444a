"""The stages as Python calls them: one call a stage, on the memory behind an address.

They do what the replay's compiled loop does with the very same stages, in the same order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled
from adaspec.policy import stages
from adaspec.policy.anchor import CAP, COUNT, NEURAL_CAP, READS, Post, recall
from adaspec.predict.features import Found, Rows

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


@compiled
def rows_of(post: Post) -> Rows:
    """This step's rows."""
    count, rows = post.limits[COUNT], post.rows
    return Rows(
        rows.slots[:count],
        rows.prompt_tokens[:count],
        rows.position[:count],
        rows.holds_neural[:count],
        rows.length[:count],
        rows.start[:count],
        rows.agree[:count],
        rows.seen[:count],
        rows.available[:count],
        rows.tail[:count],
        rows.candidate[:count],
    )


@compiled
def plan(
    address: int,
    slots: Ints,
    prompt_tokens: Ints,
    position: Ints,
    holds_neural: NDArray[np.bool_],
    length: Ints,
    start: Ints,
    agree: Ints,
    seen: Ints,
    available: Ints,
    tail: Ints,
    candidate: Ints,
) -> int:
    """Take in a batch, and say how many forwards it is worth."""
    post = recall(address)
    post.limits[COUNT] = slots.shape[0]
    rows = rows_of(post)
    rows.slots[:] = slots
    rows.prompt_tokens[:] = prompt_tokens
    rows.position[:] = position
    rows.holds_neural[:] = holds_neural
    rows.length[:] = length
    rows.start[:] = start
    rows.agree[:] = agree
    rows.seen[:] = seen
    rows.available[:] = available
    rows.tail[:] = tail
    rows.candidate[:] = candidate
    everyone = post.everyone[: slots.shape[0]]
    price = stages.price_of(post.desk, post.knobs, rows, post.cost)
    stages.consider(post.mind, post.desk, post.knobs, rows, everyone, price)
    cap, neural_cap = post.limits[CAP], post.limits[NEURAL_CAP]
    reads = post.limits[READS] > 0
    most = stages.forwards_of(
        post.desk, post.mind.outlook, reads, post.knobs, rows, post.cost, cap, neural_cap
    )
    # Evidence may make a longer draft worth while than the plan foresaw.
    return neural_cap if reads and most > 0 else most


@compiled
def keeps(address: int, rows: int, holders: int, context: int) -> bool:
    """Whether those that hold the drafter go on holding it."""
    post = recall(address)
    return stages.keeps(post.desk, post.knobs, post.cost, rows, holders, context)


@compiled
def listen(
    address: int,
    depth: int,
    tokens: Ints,
    confidences: Floats,
    length: Ints,
    agree: Ints,
    seen: Ints,
    available: Ints,
    start: Ints,
    known: Ints,
) -> None:
    """Take in the tokens drafted at this depth, and the matches behind them.

    `known` are the tokens at `start`, where the match lies in known text and not in the draft.
    """
    post = recall(address)
    rows = rows_of(post)
    copied = known.copy()
    for row in range(copied.shape[0]):
        inside = start[row] - rows.prompt_tokens[row] - rows.position[row]
        if length[row] > 0 and 0 <= inside < depth:
            copied[row] = tokens[row, inside]
    stages.take_evidence(
        post.mind,
        post.desk,
        post.knobs,
        rows,
        post.everyone[: post.limits[COUNT]],
        tokens,
        confidences,
        depth,
        Found(length, agree, seen, available, copied),
        stages.price_of(post.desk, post.knobs, rows, post.cost),
        post.limits[CAP],
    )


@compiled
def goes_on(address: int, count: int) -> bool:
    """Whether the batch gains by another forward than the `count` there were."""
    post = recall(address)
    cap, most = post.limits[CAP], post.limits[NEURAL_CAP]
    return stages.goes_on(
        post.desk, post.mind.outlook, post.knobs, rows_of(post), post.cost, cap, count, most
    )


@compiled
def settle(address: int, count: int, neural_len: Ints, ngram_len: Ints) -> bool:
    """Choose lengths; whether splices behind neural tokens are still to be looked up."""
    post = recall(address)
    cap, reads = post.limits[CAP], post.limits[READS] > 0
    stages.choose(
        post.desk,
        reads,
        post.knobs,
        rows_of(post),
        post.cost,
        cap,
        count,
        neural_len,
        ngram_len,
    )
    return not reads and bool(neural_len.any())


@compiled
def splice(
    address: int,
    neural_len: Ints,
    length: Ints,
    agree: Ints,
    seen: Ints,
    available: Ints,
    ngram_len: Ints,
) -> None:
    """Choose how many copied tokens follow the neural ones."""
    post = recall(address)
    rows = rows_of(post)
    unknown = np.full(length.shape[0], -1, np.int32)
    stages.splice(
        post.mind,
        post.desk,
        rows,
        post.everyone[: post.limits[COUNT]],
        stages.price_of(post.desk, post.knobs, rows, post.cost),
        post.limits[CAP],
        neural_len,
        Found(length, agree, seen, available, unknown),
        ngram_len,
    )


@compiled
def learn(
    address: int,
    emitted: Ints,
    emitted_tokens: Ints,
    drafted: Ints,
    neural_drafted: Ints,
    accepted: Ints,
    judged: Bools,
    forwards: int,
    seconds: float,
) -> None:
    """Carry on what came."""
    post = recall(address)
    stages.learn(
        post.desk,
        post.knobs,
        rows_of(post),
        post.cost,
        emitted,
        emitted_tokens,
        drafted,
        neural_drafted,
        accepted,
        judged,
        forwards,
        seconds,
    )
