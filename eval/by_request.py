"""How a policy's lead at one request is spread over the requests.

    python eval/by_request.py TRACES --policy DIR -o eval/reports/by-request/NAME

At one request no step is shared, so that each request has a time of its own. Of the requests that
the policy never saw, its times are held against those of the static rule that was tuned on its
training requests, with and without the requests on which it saves most.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from written_report import write_report

from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import load_cost
from adaspec.errors import AdaspecError, EvaluationError
from adaspec.evaluate.evaluation import player_of
from adaspec.evaluate.intervals import seconds_alone
from adaspec.evaluate.options import Options
from adaspec.evaluate.selection import Wanted, select
from adaspec.policy.learned import load_policy
from adaspec.policy.spec import parse_policy

WITHOUT = (0, 1, 5, 10)
"""So many requests, those on which the policy saves most, are left out."""


def main() -> None:
    """Replay both, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("--policy", required=True, help="a folder, or a shipped one's name")
    parser.add_argument("--cost", default=DEFAULT)
    parser.add_argument("-o", "--out", type=Path, required=True, help="a folder")
    options = parser.parse_args()
    try:
        _write(options)
    except AdaspecError as error:
        sys.exit(f"by_request: {error}")


def _write(options: argparse.Namespace) -> None:
    policy, cost = load_policy(options.policy), load_cost(options.cost)
    assert policy.manifest is not None
    if 1 not in policy.manifest.static_tuned:
        raise EvaluationError(f"{options.policy}: no static rule was tuned for one request at once")
    rule = parse_policy(policy.manifest.static_tuned[1])
    selection = select([options.traces], Wanted(seen=frozenset(policy.manifest.training_requests)))
    alone = Options(concurrency=(1,), orders=1, resamples=0)
    player = player_of(selection, [policy, rule], cost, alone)
    ours, theirs = seconds_alone(player, (None, 1), [policy, rule], alone)
    assert ours is not None and theirs is not None
    saved = np.argsort(ours - theirs)  # most seconds first
    leads = theirs / ours - 1
    left = {str(n): float(theirs[saved[n:]].sum() / ours[saved[n:]].sum() - 1) for n in WITHOUT}
    document = {
        "policy": policy.name,
        "rule": rule.name,
        "cost": cost.name,
        "requests": len(leads),
        "median_lead": float(np.median(leads)),
        "share_ahead": float(np.mean(leads > 0)),
        "share_behind": float(np.mean(leads < 0)),
        "lead_without": left,
    }
    said = (
        f"Lead of `{policy.name}` over `{rule.name}` on {len(leads)} unseen requests, one at a "
        f"time, costs `{cost.name}`. Without n: the n requests on which it saves most left out."
    )
    heads = ["median request", "ahead on", "behind on", "all together"]
    heads += [f"without {n}" for n in WITHOUT[1:]]
    cells = [f"{document['median_lead']:+.1%}"]
    cells += [f"{document[key]:.0%} of them" for key in ("share_ahead", "share_behind")]
    cells += [f"{lead:+.1%}" for lead in left.values()]
    rows = [heads, ["--:" for _ in heads], cells]
    table = [f"| {' | '.join(row)} |" for row in rows]
    print(said, *table, sep="\n")
    write_report(options.out, "eval/by_request.py", document, [said], table)


if __name__ == "__main__":
    main()
