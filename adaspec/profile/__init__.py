"""How long steps of an engine and decisions take on this machine."""
