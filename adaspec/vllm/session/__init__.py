"""Drives one engine by a policy: the same for both of vLLM's model runners."""
