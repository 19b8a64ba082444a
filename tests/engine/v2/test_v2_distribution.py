"""On V2, too, sampled output keeps the target's distribution, whatever is drafted and verified."""

import pytest
from test_distribution import check_distribution
from wandering import Wanderer, check_sound


@pytest.mark.thorough
@pytest.mark.parametrize("head", ["eagle3", None])
def test_sampled_outputs_are_distributed_as_without_speculation(served, engines, head):
    """Two samples of 1,000 outputs each.

    With 8 degrees of freedom a sampler that moved a mass of 0.1 from outputs of probability 0.4
    would be found with probability 0.96.
    """
    engine = served(head, max_num_seqs=64)
    wanderer = Wanderer(engine, evidence=head is not None)
    check_distribution(engines, engine, 1000)
    assert sum(wanderer.taken.values()) > 100
    check_sound(wanderer.session)
