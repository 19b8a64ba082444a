"""What is copied from earlier answers, as the tests on both model runners count it."""

import numpy as np


def copied_tokens(verified):
    """The tokens copied from earlier answers in these verified steps, and those accepted."""
    counts = np.zeros(2, int)
    for event in verified:
        copied = event.drafted - event.neural_drafted
        from_answers = np.where(event.step.drafts.remembered & event.known, copied, 0)
        accepted = np.clip(event.accepted - event.neural_drafted, 0, from_answers)
        counts += [from_answers.sum(), accepted.sum()]
    return counts.tolist()
