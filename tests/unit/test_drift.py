"""The bench of drifts replays requests that no policy knows, by a policy that does not adapt."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.append(str(CHECKOUT / "eval"))

from drift import fresh_requests  # noqa: E402

from adaspec.evaluate.selection import Wanted, select  # noqa: E402
from adaspec.policy.learned import load_policy  # noqa: E402
from adaspec.trace.reader import TraceReader  # noqa: E402
from adaspec.trace.writer import TraceWriter  # noqa: E402

PAIR = CHECKOUT / "eval" / "traces" / "reference-pair"
POLICY = "reference-pair-cpu"


def known_to(policy: str) -> frozenset[str]:
    manifest = load_policy(policy).manifest
    assert manifest is not None
    return frozenset(manifest.training_requests)


def test_no_request_is_replayed_that_a_policy_was_trained_on_under_whatever_content(
    tmp_path: Path,
) -> None:
    reader = TraceReader(PAIR)
    with TraceWriter(tmp_path / "otherwise", reader.manifest) as writer:
        for each in reader.requests():
            if each.workload == "gsm8k":
                longer = np.append(each.prompt_tokens, 1).astype(np.int32)
                writer.add(replace(each, prompt_tokens=longer))
    unseen = select([PAIR], Wanted("gsm8k", seen=known_to(POLICY))).requests
    options = Namespace(traces=tmp_path / "otherwise", workload="gsm8k", trained_on=None)
    policy = load_policy(POLICY)
    everybody = fresh_requests(options, [policy])
    assert len(everybody) > 2 * len(unseen)  # of other content, so other requests
    options.trained_on = PAIR
    fresh = fresh_requests(options, [policy])
    assert {each.id for each in fresh.requests} == {each.id for each in unseen}
    assert len(unseen) > 20
