"""Readers of recordings that other projects made."""
