"""Traces to examples, to LightGBM, to a compiled policy."""
