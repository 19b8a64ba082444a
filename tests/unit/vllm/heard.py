"""An observer that keeps whatever a session tells it."""

from collections import defaultdict


class Heard:
    """What was told of each kind of event, in its order."""

    def __init__(self, session):
        self.told = defaultdict(list)
        session.observers.add(self)

    def __getitem__(self, event):
        return self.told[event]

    def __getattr__(self, event):
        if event.startswith("_"):
            raise AttributeError(event)
        return lambda *facts: self.told[event].append(facts if len(facts) > 1 else facts[0])

    def total(self, field):
        """The sum of a field of all verified steps."""
        return sum(int(getattr(event, field).sum()) for event in self["verified"])
