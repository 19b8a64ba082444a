"""What goes wrong around a server: files that change, models that say NaN, clocks, huge requests."""

import dataclasses
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tiny_models import document, ids_of

sys.path.append(str(Path(__file__).parents[1] / "unit" / "policy"))
sys.path.append(str(Path(__file__).parent / "v2"))

from wandering import random_policy, written_policy

HEAD = {"method": "adaspec", "model": "eagle", "num_speculative_tokens": 12}


def without_numbers(policy):
    """The same policy, of which every prediction is NaN."""
    networks = {
        name: network._replace(bias_3=np.full_like(network.bias_3, np.nan))
        for name, network in policy.model.networks.items()
    }
    policy.model = dataclasses.replace(policy.model, networks=networks)
    return policy


@pytest.mark.parametrize("evidence", [True, False])
def test_a_model_that_says_nan_drafts_nothing_and_is_counted(engines, prompts, truth, evidence):
    expected = truth()
    engine = engines(HEAD)
    session = engine.put(without_numbers(random_policy(1, evidence)))
    engine.judged.clear()
    assert engine.greedy(prompts, 48) == expected
    print(session.breaker.counts, session.breaker.off, engine.judged)
