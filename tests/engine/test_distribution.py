import numpy as np
import pytest
from live_engine import sampling
from tiny_models import document, ids_of

TOKENS = 4
LEVEL = 1e-3
LEAST_EXPECTED = 10


def homogeneity(first, second):
    """(p-value, degrees of freedom) of the two-sample chi-square test on rows of tokens.

    Rows too rare to expect LEAST_EXPECTED of in each sample are one category.
    """
    from scipy.stats import chi2_contingency

    rows, where = np.unique(np.concatenate([first, second]), axis=0, return_inverse=True)
    where = where.reshape(-1)
    counts = np.stack(
        [np.bincount(part, minlength=len(rows)) for part in np.split(where, [len(first)])]
    )
    common = counts.sum(axis=0) >= 2 * LEAST_EXPECTED
    table = np.concatenate([counts[:, common], counts[:, ~common].sum(axis=1, keepdims=True)], 1)
    table = table[:, table.sum(axis=0) > 0]
    found = chi2_contingency(table, correction=False)
    return found.pvalue, found.dof


def check_distribution(engines, engine, samples):
    """Hold what an engine says to what is said without speculation, at the level 0.001."""
    prompt = ids_of(document(77, 4))[:-9]
    params = sampling(TOKENS, temperature=1.3)
    expected, found = (
        np.array([one[0] for one in each.outputs([prompt] * samples, params)])
        for each in (engines(max_num_seqs=64), engine)
    )
    assert len(np.unique(expected[:, 1])) > 2
    for upto in range(2, TOKENS + 1):
        value, freedom = homogeneity(expected[:, :upto], found[:, :upto])
        print(f"{upto} tokens, {freedom} degrees of freedom, p = {value:.3f}")
        assert freedom >= 1
        assert value > LEVEL


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("head", "policy"),
    [("eagle", "fixed:neural:3"), ("eagle", "hybrid-splice:2:8:2:1:5"), (None, "fixed:ngram:8:1")],
)
def test_sampled_outputs_are_distributed_as_without_speculation(engines, head, policy):
    """Two samples of 4,000 outputs each, at the engine's fixed seed.

    Power: a sampler that moved mass d from outputs of probability 0.4 to the others has the
    noncentrality 2,000 * (d^2 / 0.4 + d^2 / 0.6). With 15 degrees of freedom d = 0.05 is found
    with probability 0.40, d = 0.07 with 0.92; with 8 they are 0.57 and 0.97. Each position from
    the second on is tested, because drafts are verified from there.
    """
    config = {"method": "adaspec", "policy": policy, **({"model": head} if head else {})}
    engine = engines(config, max_num_seqs=64)
    engine.judged.clear()
    check_distribution(engines, engine, 4000)
    judged = [step for one in engine.judged.values() for step in one]
    accepted = sum(accepted for _, accepted in judged)
    drafted = sum(drafted for drafted, _ in judged)
    assert 0.02 * drafted < accepted < 0.98 * drafted  # both verdicts were passed often
