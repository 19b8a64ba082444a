"""Training: from traces to examples, to LightGBM's trees, to a compiled policy."""
