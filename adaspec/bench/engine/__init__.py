"""Whole servers side by side: every method at its best setting, over HTTP, in turns."""
