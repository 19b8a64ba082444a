"""The learned policy's planner: compiled stages over one memory, driven by servers and replays."""
