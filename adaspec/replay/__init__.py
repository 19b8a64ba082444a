"""Replaying traces under a policy: costs, orders, bounds."""
