"""Step-time models: builtin, loaded and fitted."""
