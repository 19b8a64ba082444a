"""The decision: the protocol and the policies behind it."""
