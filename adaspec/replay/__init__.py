"""Replaying traces under a policy: batching, costs, bounds."""
