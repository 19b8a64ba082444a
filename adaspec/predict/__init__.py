"""Features, networks and survival curves."""
