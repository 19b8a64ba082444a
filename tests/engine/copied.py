"""What is copied from earlier answers, as the tests on both model runners count it."""

import numpy as np

from adaspec.draft.answers import IN_ANSWERS


class Copied:
    """An observer that counts the tokens copied from earlier answers, and those accepted."""

    def __init__(self):
        self.counts = np.zeros(2, int)

    def verified(self, event):
        start, copied = event.step.cut.start, event.drafted - event.neural_drafted
        from_answers = np.where((start >= IN_ANSWERS) & event.known, copied, 0)
        accepted = np.clip(event.accepted - event.neural_drafted, 0, from_answers)
        self.counts += [from_answers.sum(), accepted.sum()]

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_: None
