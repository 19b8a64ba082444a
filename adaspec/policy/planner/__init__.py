"""The learned policy's planner: compiled stages over one state, driven by servers and replays."""
