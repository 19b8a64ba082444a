"""How fast are we."""
