"""Give a paired dense trace drafted tokens and confidences by known laws: EMULATED evidence.

    python eval/emulate_drafts.py IN OUT --auc 0.85 --seed 1

The public traces say how many neural tokens were accepted, not which were drafted nor how sure the
drafter was. This script makes up both, so that what such evidence is worth can be measured before
it was recorded. Figures from such traces are marked as emulated wherever they stand.

The laws. At every position from 1 on 8 tokens are drafted:

- the output's own, as far as the neural drafter was accepted;
- the first rejected one: where the n-gram candidate behind the accepted tokens (longest match, most
  recent) is wrong too, it is the candidate with probability 0.3; else it is drawn from what follows
  the same token in the trace's outputs, as often as it does, and is never the true one;
- those behind it likewise, from what follows the drafted token before them;
- each with a margin from N(+m, 1) if it is accepted and N(-m, 1) if not. Their difference is
  N(2m, 2), so AUC = P(difference > 0) = Phi(m * sqrt(2)), and m = Phi^-1(AUC) / sqrt(2).

Where nothing else follows a token, any other token of the outputs is drawn. Tokens beyond the
output's end do not exist: what is drafted there is rejected. So is what stands behind the trace's
own cap where that is below 8: the truth is unknown there, and no replay may look at it.

Requests whose neural counts are of another run than their tokens (unpaired) are left out. The same
trace, AUC and seed give the same bytes; a request's draws depend on the seed and its name alone.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import NoReturn

import numpy as np
from numba import njit
from numpy.typing import NDArray

from adaspec import __version__
from adaspec.draft.index import match_positions
from adaspec.errors import AdaspecError, TraceError
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import CONFIDENCES, Request
from adaspec.trace.writer import whole_trace

DRAFTED = 8
CANDIDATE_SHARE = 0.3
CONFIDENCE = "margin"

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Followers:
    """The tokens that follow each token in a trace's outputs, ascending, repeats included."""

    tokens: Ints
    """The tokens that have followers, ascending, without repeats."""
    starts: NDArray[np.int64]
    """The starts of the tokens' followers in `following`, and the end of the last."""
    following: Ints
    anywhere: Ints
    """All tokens of the outputs, ascending, repeats included."""


def followers(outputs: Iterable[Ints]) -> Followers:
    """The followers of all tokens in the outputs."""
    arrays = [np.empty(0, np.int32), *outputs]
    first = np.concatenate([output[:-1] for output in arrays])
    second = np.concatenate([output[1:] for output in arrays])
    order = np.lexsort((second, first))
    tokens, starts = np.unique(first[order], return_index=True)
    return Followers(
        tokens=tokens.astype(np.int32),
        starts=np.append(starts, len(order)).astype(np.int64),
        following=second[order].astype(np.int32),
        anywhere=np.sort(np.concatenate(arrays)).astype(np.int32),
    )


@njit(cache=True)
def _other_than(pool: Ints, true: int, uniform: float) -> int:
    """An entry of the ascending `pool` other than `true`, each equally likely; -1 if none."""
    low = np.searchsorted(pool, true, side="left")
    high = np.searchsorted(pool, true, side="right")
    others = len(pool) - (high - low)
    if others == 0:
        return -1
    # The minimum is needed because a product just below `others` may round up.
    index = min(int(uniform * others), others - 1)
    return pool[index if index < low else index + high - low]


@njit(cache=True)
def _wrong_token(
    previous: int,
    true: int,
    uniform: float,
    tokens: Ints,
    starts: NDArray[np.int64],
    following: Ints,
    anywhere: Ints,
) -> int:
    index = np.searchsorted(tokens, previous)
    wrong_token = -1
    if index < len(tokens) and tokens[index] == previous:
        wrong_token = _other_than(following[starts[index] : starts[index + 1]], true, uniform)
    if wrong_token < 0:
        wrong_token = _other_than(anywhere, true, uniform)
    # Without any other token, the trace has only one, so any second one will do.
    return wrong_token if wrong_token >= 0 else (1 if true == 0 else 0)


@njit(cache=True)
def _draft(
    output: Ints,
    accepted: NDArray[np.int16],
    candidates: Ints,
    coins: NDArray[np.float64],
    uniforms: NDArray[np.float64],
    tokens: Ints,
    starts: NDArray[np.int64],
    following: Ints,
    anywhere: Ints,
) -> Ints:
    length, most = uniforms.shape
    drafted = np.full((length, most), -1, np.int32)
    for position in range(1, length):
        for step in range(most):
            output_position = position + step
            true = output[output_position] if output_position < length else -1
            if step < accepted[position]:
                drafted[position, step] = true
                continue
            if step == accepted[position] and output_position < length:
                candidate = candidates[output_position]
                if candidate >= 0 and candidate != true and coins[position] < CANDIDATE_SHARE:
                    drafted[position, step] = candidate
                    continue
            previous = drafted[position, step - 1] if step else output[position - 1]
            drafted[position, step] = _wrong_token(
                previous, true, uniforms[position, step], tokens, starts, following, anywhere
            )
    return drafted


def emulated(request: Request, pool: Followers, cap: int, shift: float, seed: int) -> Request:
    """The request with 8 drafted tokens and margins per position, and counts up to `cap`."""
    assert request.neural_accepted is not None
    output, length = request.output_tokens, len(request.output_tokens)
    rng = np.random.default_rng([seed, _number(request)])
    accepted = np.minimum(request.neural_accepted, cap).astype(np.int16)
    context = np.concatenate([request.prompt_tokens, output]).astype(np.int32)
    start = match_positions(request.prompt_tokens, output).start
    candidates = np.where(start >= 0, context[np.maximum(start, 0)], -1).astype(np.int32)
    drafted = _draft(
        output,
        accepted,
        candidates,
        rng.random(length),
        rng.random((length, DRAFTED)),
        pool.tokens,
        pool.starts,
        pool.following,
        pool.anywhere,
    )
    right = np.arange(DRAFTED) < accepted[:, None]
    confidences = np.full((length, DRAFTED, len(CONFIDENCES)), np.nan, np.float32)
    margin = rng.standard_normal((length, DRAFTED)) + np.where(right, shift, -shift)
    confidences[1:, :, CONFIDENCES.index(CONFIDENCE)] = margin[1:]
    return replace(
        request, neural_accepted=accepted, drafted_tokens=drafted, confidences=confidences
    )


def emulate(source: Path, target: Path, auc: float, seed: int, force: bool) -> str:
    """Write the emulated trace; returns a summary in one line."""
    reader = TraceReader(source)
    for warning in reader.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    manifest = reader.manifest
    if manifest.kind != "dense":
        raise TraceError(f"{source}: is a {manifest.kind} trace: give a dense one")
    if manifest.neural_cap is None:
        raise TraceError(f"{source}: no neural drafter ran in it: there is nothing to emulate")
    if target.resolve() == source.resolve():
        raise TraceError(f"{target}: is the trace to read: choose another folder to write")
    pool = followers(request.output_tokens for request in reader.requests())
    cap = min(DRAFTED, manifest.neural_cap)
    emulated_manifest = replace(
        manifest,
        neural_cap=cap,
        draft_cap=DRAFTED,
        confidences=(CONFIDENCE,),
        adaspec_version=__version__,
        source=f"emulate_drafts: drafted tokens and margins are EMULATED (auc {auc!r}, "
        f"seed {seed}); the rest from: {manifest.source or 'unknown'}",
    )
    shift = NormalDist().inv_cdf(auc) / math.sqrt(2)
    paired = unpaired = positions = 0
    with whole_trace(target, emulated_manifest, force) as writer:
        for request in reader.requests():
            if not request.paired:
                unpaired += 1
                continue
            writer.add(emulated(request, pool, cap, shift, seed))
            paired += 1
            positions += max(0, len(request.output_tokens) - 1)
        if not paired:
            raise TraceError(
                f"{source}: none of its {unpaired} requests is paired: neural counts and tokens "
                "must be of one run"
            )
    return (
        f"{target}: {paired} requests, {positions:,} positions, margins shifted by "
        f"+-{shift:.4f}; {unpaired} unpaired requests left out"
    )


def _number(request: Request) -> int:
    """A number for the seed of a request's draws, so that they do not depend on the order."""
    name = f"{len(request.workload)}:{request.workload}{request.id}"
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "replace")).digest()[:8], "little")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print one line, without the usage that argparse would add."""
        self.exit(2, f"error: {message}: see --help\n")


def _auc(text: str) -> float:
    value = float(text)
    if not 0.5 <= value < 1:
        raise ValueError
    return value


def _seed(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


_auc.__name__, _seed.__name__ = "AUC from 0.5 to below 1", "seed from 0 on"  # shown in errors


def main() -> int:
    """Run the command line; returns 0, or 2 if the user must fix something."""
    parser = _Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="IN", type=Path, help="a paired dense trace")
    parser.add_argument("target", metavar="OUT", type=Path, help="the folder to write")
    parser.add_argument("--auc", type=_auc, default=0.85, help="of the margins (default 0.85)")
    parser.add_argument("--seed", type=_seed, required=True)
    parser.add_argument("--force", action="store_true", help="replace the trace at OUT")
    arguments = parser.parse_args()
    try:
        print(
            emulate(
                arguments.source, arguments.target, arguments.auc, arguments.seed, arguments.force
            )
        )
    except AdaspecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
