"""A planner behind an address is the very one that Python sees."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from random_models import random_model

from adaspec.cost.model import CostModel
from adaspec.policy.planner.address import Pinned, model_at, planner_at
from adaspec.policy.planner.state import Planner, new_planner
from adaspec.predict.tables import packed


@njit  # not cached: nobody would drop what lies beside a test when the layout changes
def _seen(address: int) -> tuple[float, float, int, float]:
    planner = planner_at(address)
    planner.state.splice_expected[1] = 7.5
    planner.limits[0].rows = 2
    model = model_at(planner.models[0])
    costs = planner.costs
    return (
        costs.beyond_s,
        costs.captured_sizes[0],
        planner.rows.candidate.shape[1],
        model.tables.base[1],
    )


def pinned(seed: int) -> tuple[Pinned, Planner]:
    empty = np.empty(0, np.float32)
    tables = packed(np.empty(0, np.uint64), empty, empty, empty, (0.25, 0.75, 0, 0), 1)
    model = random_model(seed, tables, evidence=True)
    costs = CostModel("any", (4, 8, 9, 10), (3.0, 5.0, 5.5, 6.0), 8).constants()
    kept = Pinned(model.compiled())
    address = np.array([kept.address])
    return kept, new_planner([model], address, costs, 3, 48, 8, reads_drafts=False)


def test_compiled_code_reads_and_writes_what_lies_behind_the_address() -> None:
    model, planner = pinned(0)
    # Arrays that are read-only or in pieces are copied.
    mean = np.repeat(planner.batch_state.mean, 2)[::2]
    planner.state.splice_expected.setflags(write=False)
    kept = Pinned(planner._replace(batch_state=planner.batch_state._replace(mean=mean)))
    np.testing.assert_array_equal(kept.value.batch_state.mean, planner.batch_state.mean)
    assert _seen(kept.address) == (
        planner.costs.beyond_s,
        4,
        planner.rows.candidate.shape[1],
        0.75,
    )
    assert kept.value.state.splice_expected[1] == 7.5
    assert kept.value.limits["rows"] == 2
    with pytest.raises(TypeError, match="laid out"):
        Pinned(planner._replace(models=np.zeros(2)))
    del model
