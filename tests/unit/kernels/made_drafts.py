"""What a predictor might have made of a step, at random."""

import torch

from adaspec.vllm.session.packing import Made

NEURAL_CAP, VOCABULARY = 5, 90


def made_of(seed, rows, cap, forwards):
    """What a predictor might have made, in views that are as its own are."""
    draw = torch.Generator().manual_seed(seed)

    def whole(low, high, *shape):
        return torch.randint(low, high, shape, generator=draw)

    length = whole(0, cap + 1, rows, 1)
    inside = torch.arange(cap) < length
    facts = whole(0, 3000, rows, 9)
    survival = torch.rand((rows, cap), generator=draw, dtype=torch.float64).cumprod(1)
    made = Made(
        # Some tokens are none that the target knows.
        tokens=whole(0, VOCABULARY + 4, rows, cap).where(inside, -1),
        survival=survival.where(inside, 0.0),
        neural=whole(0, NEURAL_CAP + 1, rows),
        decides=whole(0, 4, rows) > 0,
        context=facts[:, 2],
        sampled=whole(0, cap + 2, rows).int(),
        rejected=whole(0, cap + 1, rows).int(),
        available=facts[:, 5],
        remembered=whole(0, 2, rows) > 0,
        neural_gain=torch.rand(rows, generator=draw, dtype=torch.float64),
        emitted=whole(-1, VOCABULARY, rows, cap + 1),
        drafted=whole(0, VOCABULARY, rows, NEURAL_CAP + 2)[:, :forwards],
        confidences=torch.randn((NEURAL_CAP, rows + 3, 3), generator=draw)[:, :rows],
    )
    limits = torch.stack([whole(0, cap + 2, rows), whole(0, 2, rows)], 1).int()
    return made, limits
