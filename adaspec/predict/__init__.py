"""Features, compiled forests and survival curves."""
