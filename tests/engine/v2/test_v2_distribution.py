"""On V2, too, sampled output keeps the target's distribution, whatever is drafted and verified."""

import numpy as np
import pytest
from test_distribution import LEVEL, homogeneity
from tiny_models import document, ids_of
from wandering import Wanderer, check_sound

SAMPLES, TOKENS = 1000, 4


def sampled(engine, prompt):
    from vllm import SamplingParams

    params = SamplingParams(temperature=1.3, max_tokens=TOKENS, ignore_eos=True)
    return np.array([one[0] for one in engine.outputs([prompt] * SAMPLES, params)])


@pytest.mark.thorough
@pytest.mark.parametrize("head", ["eagle3", None])
def test_sampled_outputs_are_distributed_as_without_speculation(served, engines, head):
    """Two samples of 1,000 outputs each, tested at the level 0.001.

    With 8 degrees of freedom a sampler that moved a mass of 0.1 from outputs of probability 0.4
    would be found with probability 0.96.
    """
    prompt = ids_of(document(77, 4))[:-9]
    expected = sampled(engines(max_num_seqs=64), prompt)
    assert len(np.unique(expected[:, 1])) > 2
    engine = served(head, max_num_seqs=64)
    wanderer = Wanderer(engine, evidence=head is not None)
    found = sampled(engine, prompt)
    assert sum(wanderer.taken.values()) > 100
    for upto in range(2, TOKENS + 1):
        value, freedom = homogeneity(expected[:, :upto], found[:, :upto])
        assert freedom >= 1
        assert value > LEVEL
    check_sound(wanderer.worker)
