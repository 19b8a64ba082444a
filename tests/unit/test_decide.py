"""`eval/decide.py` measures whole steps of a policy; nothing here looks at the clock."""

import sys

import numpy as np
import pytest
from checkout import CHECKOUT, need

pytest.importorskip("torch", reason="torch is not installed")

from random_models import random_policy

from adaspec.predict.tables import no_tables

need("eval")
sys.path.append(str(CHECKOUT / "eval"))

import decide  # noqa: E402

POLICY = random_policy(np.random.default_rng(3), no_tables(), evidence=True, cap=20, neural_cap=5)


def test_drafts_are_accepted_in_part():
    steps = list(decide.made_up_steps(POLICY, 16, 2048, 60))
    assert 1.5 < np.mean([counts for _, counts in steps]) < 3.5


def test_a_row_has_every_part_of_a_step_and_two_constants_are_a_line_through_rows():
    row = decide.measured(POLICY, 3, steps=5)
    assert min(row["before_us"], row["read_us"], row["after_us"]) >= 0
    assert 0 < row["median_us"] <= row["p99_us"]
    line = [{"batch": batch, "median_us": 40 + 3 * batch} for batch in decide.BATCHES]
    assert decide.constants(line) == pytest.approx({"decide_s": 40e-6, "decide_per_row_s": 3e-6})
