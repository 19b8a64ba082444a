"""Readers of other projects' recordings."""
