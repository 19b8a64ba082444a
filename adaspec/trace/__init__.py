"""Traces, which record what happened: their schema, store and importers."""
