"""What is copied from earlier answers, as the tests on both model runners count it."""

import numpy as np


class Copied:
    """An observer that counts the tokens copied from earlier answers, and those accepted."""

    def __init__(self):
        self.counts = np.zeros(2, int)

    def verified(self, event):
        copied = event.drafted - event.neural_drafted
        from_answers = np.where(event.step.from_answers & event.known, copied, 0)
        accepted = np.clip(event.accepted - event.neural_drafted, 0, from_answers)
        self.counts += [from_answers.sum(), accepted.sum()]

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_: None
